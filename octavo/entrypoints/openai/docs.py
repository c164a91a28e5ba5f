"""/openapi.json, and /docs: the same as a page that needs no network."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from starlette.responses import Response

from octavo.entrypoints.openai.openapi import describe
from octavo.entrypoints.openai.state import RequestContext, ServerState

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; padding: .4rem 0; }
code, td:first-child { font-family: ui-monospace, monospace; }
.method { display: inline-block; width: 3.5rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; margin: .3rem 0 1rem; }
td { border-top: 1px solid #8884; padding: .2rem .5rem .2rem 0; vertical-align: top; }
"""


async def show_openapi(server: ServerState, context: RequestContext) -> Response:
    """Return the OpenAPI document."""
    return Response(json.dumps(_document(server)), media_type="application/json")


async def show_docs(server: ServerState, context: RequestContext) -> Response:
    """Return the page."""
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(_page(_document(server)), media_type="text/html", headers=headers)


def _document(server: ServerState) -> dict[str, Any]:
    from octavo import __version__
    from octavo.entrypoints.openai.routes import endpoints  # here: the table names this module's functions

    return describe(endpoints(has_docs=not server.args.disable_docs), __version__)


def _page(document: dict[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    operations = "".join(
        _operation(method, path, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}: API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{escape(document['info']['description'])}. "
        f'The same for machines: <a href="openapi.json">openapi.json</a>.</p>{operations}</html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    success = operation["responses"]["200"].get("content", {}).get("application/json", {}).get("schema", {})
    return (
        f'<details><summary><span class="method">{method.upper()}</span> <code>{escape(path)}</code> '
        f"{escape(operation['summary'])}</summary>"
        f"{_fields('Request', body, schemas)}{_fields('Response', success, schemas)}</details>"
    )


def _fields(title: str, reference: dict[str, Any], schemas: dict[str, Any]) -> str:
    name = reference.get("$ref", "").rpartition("/")[2]
    if not name:
        return ""
    schema = schemas[name]
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td>{escape(field)}{' *' if field in required else ''}</td><td>{escape(_kind(kind))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", ""))
    return f"<h4>{title}: {escape(name)}</h4><p>{about}</p><table>{rows}</table>"


def _kind(schema: dict[str, Any]) -> str:
    """Return a type in a few words."""
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [_kind(one) for one in schema.get("anyOf", schema.get("oneOf", []))]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(kind)
