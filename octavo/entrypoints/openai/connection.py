"""One client connection: uvicorn's protocol with limits on the size of a request's head and the time it may take.

Without them a client could make the server hold an endless header, or a connection on which nothing ever comes.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from octavo.entrypoints.openai.errors import HTTPError, error_response
from octavo.entrypoints.openai.server_args import ServerArgs

_UPGRADE = re.compile(rb"\r\n(upgrade[ \t]*:)", re.IGNORECASE)


def limited_protocol(args: ServerArgs) -> type[asyncio.Protocol]:
    """Return the protocol class for a server's limits."""
    limits = {
        "max_header_bytes": args.max_header_bytes,
        "max_header_count": args.max_header_count,
        "head_timeout_s": args.request_timeout_s,
    }
    return type("LimitedProtocol", (_LimitedProtocol,), limits)


class _LimitedProtocol(HttpToolsProtocol):
    """head_timeout_s: 0 = none. A head may be larger than max_header_bytes by what one read of the socket brings."""

    max_header_bytes: int
    max_header_count: int
    head_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reads_head = True
        self._awaits_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # it is the read-write kind
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(_without_upgrade(data) if self._awaits_head else data)
        if self._reads_head and not self._is_refused:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_header_bytes:
                self._refuse(431, "the request's head is too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reads_head, self._head_bytes = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._reads_head = self._awaits_head = False
        self._stop_timer()
        head_bytes = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if len(self.headers) > self.max_header_count or head_bytes > self.max_header_bytes:
            self._refuse(431, "the request's head is too large")
            raise ValueError("the request's head is too large")  # the parser stops here
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            _end_by_closing(self.cycle)

    def on_message_complete(self) -> None:
        self._awaits_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_refused:
            self._refuse(400, "this is not valid HTTP")

    def _refuse(self, status: int, message: str) -> None:
        self._is_refused = True
        self._stop_timer()
        body = error_response(HTTPError(status, message)).body
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        if self.head_timeout_s:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        # while an earlier request on this connection is still being answered, its successor may take its time
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_timer()
        elif not self.transport.is_closing():
            self.transport.close()


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """Send an answer of unknown length without chunks, which HTTP/1.0 does not know; its end is the connection's."""
    send = cycle.send

    async def send_as_it_is(message: Any) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = send_as_it_is  # type: ignore[method-assign]


def _without_upgrade(data: bytes) -> bytes:
    """Rename the header Upgrade in the head that these bytes are or begin with.

    There is nothing to upgrade to, and the parser would skip the body: Java's client asks for HTTP/2 in this way.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(rb"\r\nx-\1", head) + end + rest
