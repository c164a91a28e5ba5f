"""The ASGI application of one server: routes and what surrounds them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from octavo.entrypoints.openai import errors
from octavo.entrypoints.openai.middleware import KeyGuard, OriginGuard, RequestLog
from octavo.entrypoints.openai.responses import serve_stored_responses
from octavo.entrypoints.openai.routes import endpoints, make_route
from octavo.entrypoints.openai.state import ServerState
from octavo.utils.imports import import_by_name


def build_app(server: ServerState) -> ASGIApp:
    """Return the application; the caller starts and ends the engine behind it."""
    args = server.args
    serve_stored_responses(server)
    offered = endpoints(has_docs=not args.disable_docs)
    inner = Starlette(
        routes=[make_route(server, endpoint) for endpoint in offered],
        middleware=_middleware(server, [endpoint.path for endpoint in offered if endpoint.is_open]),
        exception_handlers={HTTPException: _describe},
    )
    # an open page asks for the state all the time
    quiet_paths = ["/octavo/state", *(args.disable_access_log_for_endpoints or "").split(",")]
    log = RequestLog(inner, quiet_paths, args.disable_access_log, args.enable_request_id_headers, args.root_path or "")
    server.http_counts = log.counts
    return log


def _middleware(server: ServerState, open_paths: list[str]) -> list[Middleware]:
    """Return what a request passes, outermost first. CORS comes before keys: a browser's question carries none."""
    args = server.args
    layers: list[Middleware] = []
    if args.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=args.allowed_origins,
                allow_methods=args.allowed_methods,
                allow_headers=args.allowed_headers,
                allow_credentials=args.allow_credentials,
            )
        )
    layers.append(Middleware(OriginGuard, allowed_origins=args.allowed_origins))
    if args.api_key:
        layers.append(Middleware(KeyGuard, keys=args.api_key, open_paths=open_paths))
    layers += [Middleware(import_by_name(name)) for name in args.middleware]
    return layers


async def _describe(request: Request, error: Exception) -> Response:
    """Answer for the router: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    message = {
        404: f"there is nothing at {request.url.path[:200]}",
        405: f"{request.method} is not possible at {request.url.path[:200]}",
    }.get(error.status_code, error.detail)
    return errors.error_response(errors.HTTPError(error.status_code, message, headers=error.headers))
