"""A small HTTP/1.1 client: keeps connections, gives bodies piece by piece as they come.

Standard streams with the C parser that the server uses too: a measuring client on the server's machine takes processor
time from what it measures, and general clients cost several times as much per streamed token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo.errors import ConfigError

_READ_BYTES = 64 * 1024


class ConnectionLost(Exception):
    """The server closed the connection, or could not be reached."""


@dataclass(frozen=True)
class Address:
    """Where a server is. path: what comes before every request's path; host_header: as in the URL."""

    host: str
    port: int
    is_secure: bool
    path: str
    host_header: str


def parse_url(url: str) -> Address:
    """Return the address that an http or https URL names; raises ConfigError."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"expected a URL such as http://127.0.0.1:8000, got {url!r}")
    is_secure = parts.scheme == "https"
    host_header = parts.netloc.rpartition("@")[2]
    return Address(parts.hostname, port or (443 if is_secure else 80), is_secure, parts.path.rstrip("/"), host_header)


class Client:
    """Requests to one server. headers: sent with each; verify: whether a certificate must be valid."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None, verify: bool = True) -> None:
        self.address = parse_url(base_url)
        self._headers = dict(headers or {})
        self._idle: list[_Connection] = []
        self._tls = _tls_context(verify) if self.address.is_secure else None

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Response, None]:
        """Send a request; the response is there once its head is. Raises ConnectionLost.

        A kept connection that turns out to be closed is replaced once: the server may close it when it likes.
        """
        head = self._head(method, path, body, {**self._headers, **(headers or {})})
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            response = await connection.exchange(head, body or b"")
        except ConnectionLost:
            was_kept = connection.num_requests > 1
            connection.close()
            if not was_kept:
                raise
            connection = await self._connect()
            response = await connection.exchange(head, body or b"")
        except BaseException:  # whoever stops waiting for an answer leaves: the server is to see it
            connection.close()
            raise
        try:
            yield response
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close what is open."""
        while self._idle:
            self._idle.pop().close()

    async def _connect(self) -> _Connection:
        try:
            reader, writer = await asyncio.open_connection(self.address.host, self.address.port, ssl=self._tls)
        except OSError as error:
            where = f"{self.address.host}:{self.address.port}"
            raise ConnectionLost(f"cannot reach {where}: {error.strerror or error}") from None
        return _Connection(reader, writer)

    def _head(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self.address.path}{path} HTTP/1.1", f"Host: {self.address.host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode()


class Response:
    """What a server answers; the parser's callbacks below fill it."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self.status = 0
        self.is_complete = False
        self.keeps_connection = False

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes; raises ConnectionLost if it ends too early."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self.is_complete:
                return
            await self._connection.receive()

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([piece async for piece in self.pieces()])

    # -- called by the parser --------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self.status = self._connection.status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.keeps_connection = self._connection.keeps_alive()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import httptools

        self._make_parser = httptools.HttpResponseParser
        self._parse_error = httptools.HttpParserError
        self._reader = reader
        self._writer = writer
        self._response: Response | None = None
        self.num_requests = 0

    @property
    def is_reusable(self) -> bool:
        """Whether the last response has been read and the server keeps the connection."""
        response = self._response
        return response is not None and response.is_complete and response.keeps_connection

    def keeps_alive(self) -> bool:
        """Whether the server keeps the connection; known only at the moment when a message is complete."""
        keeps: bool = self._parser.should_keep_alive()
        return keeps

    def status_code(self) -> int:
        status: int = self._parser.get_status_code()
        return status

    async def exchange(self, head: bytes, body: bytes) -> Response:
        """Send a request and wait for the head of its response."""
        self.num_requests += 1
        response = self._response = Response(self)
        self._parser = self._make_parser(response)
        try:
            self._writer.write(head + body)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}") from None
        while not response.status:
            await self.receive()
        return response

    async def receive(self) -> None:
        """Wait for data and parse it."""
        try:
            data = await self._reader.read(_READ_BYTES)
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}") from None
        if not data:
            raise ConnectionLost("the server closed the connection before the response was complete")
        try:
            self._parser.feed_data(data)
        except self._parse_error as error:
            raise ConnectionLost(f"the response is not HTTP: {error}") from None

    def close(self) -> None:
        self._writer.close()


def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
