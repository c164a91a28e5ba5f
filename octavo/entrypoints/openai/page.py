"""The page at /: plain files, served as they are. They load nothing from elsewhere, and may not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.responses import Response

from octavo.entrypoints.openai.http import PlainHandler
from octavo.entrypoints.openai.state import RequestContext, ServerState

_FOLDER = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
STATIC_FILES: Mapping[str, str] = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "playground.js": "text/javascript",
    "engine.js": "text/javascript",
    "shared.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


async def show_page(server: ServerState, context: RequestContext) -> Response:
    """Return the page."""
    return _file("index.html", "text/html")


def static_file(name: str) -> PlainHandler:
    """Return the endpoint that serves one of STATIC_FILES."""

    async def show(server: ServerState, context: RequestContext) -> Response:
        return _file(name, STATIC_FILES[name])

    return show


def _file(name: str, media_type: str) -> Response:
    return Response((_FOLDER / name).read_bytes(), media_type=media_type, headers=_HEADERS)
