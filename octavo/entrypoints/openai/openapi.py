"""The OpenAPI description of a server, made from the route table and the wire types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.entrypoints.openai.protocol.common import ErrorResponse

if TYPE_CHECKING:
    from octavo.entrypoints.openai.routes import Endpoint

_REFERENCE = "#/components/schemas/{name}"
_ERROR_STATUSES = {
    "400": "The request is wrong; the message says how",
    "401": "The API key is missing or wrong",
    "404": "There is no such model",
    "408": "The body did not arrive in time",
    "413": "The body is too large",
    "415": "The body is not declared as JSON",
    "500": "The engine gave the request up",
    "503": "Overloaded, or there is no engine; Retry-After says when to try again",
}


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these endpoints."""
    documented = [endpoint for endpoint in endpoints if endpoint.is_documented]
    types: list[type] = [ErrorResponse]
    for endpoint in documented:
        types += [kind for kind in (endpoint.request_type, endpoint.response_type) if kind is not None]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REFERENCE)
    references = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in documented:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": version, "description": "OpenAI-compatible API on one engine"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(endpoint: Endpoint, path: str, references: dict[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{path}").strip("_"),
        "responses": {"200": _success(endpoint, references)},
    }
    for status, meaning in _ERROR_STATUSES.items():
        if status not in _possible(endpoint):
            continue
        operation["responses"][status] = {"description": meaning, "content": _json(references[ErrorResponse])}
    parameters = [_parameter(name, "path") for name in re.findall(r"\{(\w+)\}", path)]
    parameters += [_parameter(name, "query") for name in endpoint.query]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.request_type is not None:
        operation["requestBody"] = {"required": True, "content": _json(references[endpoint.request_type])}
    if not endpoint.is_open:
        operation["security"] = [{"key": []}, {}]
    return operation


def _possible(endpoint: Endpoint) -> tuple[str, ...]:
    if endpoint.request_type is not None:
        return tuple(_ERROR_STATUSES)
    return ("400", "401", "404", "500", "503")


def _success(endpoint: Endpoint, references: dict[type, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if endpoint.response_type is not None:
        success["content"] = _json(references[endpoint.response_type])
        if endpoint.streams:
            success["description"] = "Success; with stream=true, server-sent events that end with [DONE]"
            success["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    elif endpoint.media_type is not None:
        success["content"] = {endpoint.media_type: {"schema": {"type": "string"}}}
    return success


def _parameter(name: str, where: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
