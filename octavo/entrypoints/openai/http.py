"""Endpoints as ASGI applications: JSON in, JSON or a stream of events out, and clients that go away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.entrypoints.openai import engine_headers, errors
from octavo.entrypoints.openai.body import parse_body, read_body, require_json
from octavo.entrypoints.openai.state import RequestContext, ServerState

RequestType = TypeVar("RequestType", bound=msgspec.Struct)
Result = TypeVar("Result")

Events = AsyncGenerator[bytes, None]
JSONHandler = Callable[[ServerState, RequestType, RequestContext], Awaitable["msgspec.Struct | Events"]]
PlainHandler = Callable[[ServerState, RequestContext], Awaitable["msgspec.Struct | Response"]]
ErrorResponder = Callable[[BaseException], Response]

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
_JSON_HEADERS = [(b"content-type", b"application/json")]
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
]


def event(data: msgspec.Struct) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def named_event(name: str, data: msgspec.Struct) -> bytes:
    """Return one server-sent event that tells its kind."""
    return f"event: {name}\n".encode() + event(data)


class JSONEndpoint(Generic[RequestType]):
    """Takes a JSON body of one type. The handler returns a struct, or an async generator of events for a stream.

    error_response: how an exception is told before anything was sent
    """

    def __init__(
        self,
        server: ServerState,
        request_type: type[RequestType],
        handler: JSONHandler[RequestType],
        error_response: ErrorResponder = errors.error_response,
    ) -> None:
        self._server = server
        self._request_type = request_type
        self._handler = handler
        self._error_response = error_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            require_json(scope)
            body = await read_body(scope, receive, self._server.args.max_request_bytes)
            await until_disconnect(receive, self._answer(scope, body, send))
        except ClientDisconnect:
            return
        except Exception as error:
            await self._error_response(error)(scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        engine_headers.enter(scope)
        request = await parse_body(body, self._request_type)
        with errors.named_as_in(request):
            result = await self._handler(self._server, request, _context(scope))
            if isinstance(result, msgspec.Struct):
                await send_json(send, result)
            else:
                await send_events(send, result, self._server.args.sse_keep_alive_interval or None)


class PlainEndpoint:
    """Takes no body."""

    def __init__(self, server: ServerState, handler: PlainHandler) -> None:
        self._server = server
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            result = await self._handler(self._server, _context(scope))
        except Exception as error:
            result = errors.error_response(error)
        if isinstance(result, Response):
            await result(scope, receive, send)
        else:
            await send_json(send, result)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what the work returns; when the client goes away first, cancel it and raise ClientDisconnect.

    The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))  # its requests are aborted when this returns


async def send_json(send: Send, data: msgspec.Struct) -> None:
    """Send a whole response."""
    body = msgspec.json.encode(data)
    headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_events(send: Send, events: Events, keep_alive_s: float | None) -> None:
    """Send a stream of events. Nothing is sent before the first one: until then an error is an ordinary response.

    An error in mid-stream becomes an event of its own. keep_alive_s: after that much silence a comment is sent.
    """
    started = False
    async with aclosing(events):
        try:
            iterator = events if keep_alive_s is None else _with_keep_alive(events, keep_alive_s)
            async for piece in iterator:
                if not started:
                    await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
                    started = True
                # waits while the client reads too slowly: what comes meanwhile is merged behind us
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception as error:
            if not started:
                raise
            body = event(errors.error_body(errors.as_http_error(error))) + DONE
            await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _with_keep_alive(events: Events, interval_s: float) -> Events:
    """Yield the events, and a comment whenever none came for interval_s."""
    pending = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait((pending,), timeout=interval_s)
            if not done:
                yield _KEEP_ALIVE
                continue
            try:
                piece = pending.result()
            except StopAsyncIteration:
                return
            pending = asyncio.ensure_future(anext(events))
            yield piece
    finally:
        pending.cancel()
        await asyncio.wait((pending,))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _context(scope: Scope) -> RequestContext:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
    return RequestContext(headers.get("x-request-id") or None, headers, query, scope.get("path_params", {}))
