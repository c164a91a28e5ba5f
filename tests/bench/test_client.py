"""The HTTP client: bodies in pieces, kept connections, servers that go away, and streams in odd pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from octavo.entrypoints.bench.client import Client, ConnectionLost, parse_url
from octavo.entrypoints.bench.datasets import BenchPrompt
from octavo.entrypoints.bench.requests import BACKENDS, RequestOptions, RequestResult, send
from octavo.errors import ConfigError

PROMPT = BenchPrompt("x", 1, 4)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(serve: Serve, use: Callable[[Client], Awaitable[object]]) -> object:
    """Run `use` with a client of a server whose connections `serve` handles."""

    async def both() -> object:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base")
        try:
            return await use(client)
        finally:
            client.close()
            server.close()

    return asyncio.run(both())


def answering(*replies: bytes, pause_s: float = 0.0, keeps: bool = False) -> Serve:
    """A server that sends the same pieces for every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
            await reader.readexactly(length)
            for reply in replies:
                writer.write(reply)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if not keeps:
                break
        writer.close()

    return serve


def chunked(*pieces: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]


def test_a_request_that_nobody_waits_for_any_more_leaves_its_connection():
    is_left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""  # and not a word before
        is_left.set()
        writer.close()

    async def use(client: Client) -> None:
        async def ask() -> None:
            async with client.request("GET", "/slow"):
                pass

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.wait_for(is_left.wait(), 20)

    with_server(serve, use)


def test_a_connection_is_used_again():
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    connections = []

    async def use(client: Client) -> list[bytes]:
        bodies = []
        for _ in range(3):
            async with client.request("GET", "/x") as response:
                bodies.append(await response.read())
            connections.append(client._idle[0])
        return bodies

    assert with_server(answering(reply, keeps=True), use) == [b"hi"] * 3
    assert len(set(map(id, connections))) == 1


def test_a_kept_connection_that_the_server_closed_is_replaced():
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"  # says that it keeps, and closes

    async def use(client: Client) -> list[bytes]:
        bodies = []
        for _ in range(2):
            async with client.request("GET", "/x") as response:
                bodies.append(await response.read())
            await asyncio.sleep(0.02)
        return bodies

    assert with_server(answering(reply), use) == [b"hi"] * 2


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", b"nonsense\r\n\r\n"])
def test_servers_that_break_off_are_an_error(reply: bytes):
    async def use(client: Client) -> None:
        async with client.request("GET", "/x") as response:
            await response.read()

    with pytest.raises(ConnectionLost):
        with_server(answering(reply), use)


def test_no_server_is_an_error_that_says_where():
    async def use() -> None:
        async with Client("http://127.0.0.1:9").request("GET", "/"):
            pass

    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:9"):
        asyncio.run(use())


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://x:99999999"])
def test_what_is_no_url_is_refused(url: str):
    with pytest.raises(ConfigError):
        parse_url(url)


def measured(*pieces: bytes, backend: str = "openai", pause_s: float = 0.0) -> RequestResult:
    async def use(client: Client) -> RequestResult:
        return await send(client, BACKENDS[backend], RequestOptions("m", "/v1/completions"), PROMPT)

    result = with_server(answering(*chunked(*pieces), pause_s=pause_s), use)
    assert isinstance(result, RequestResult)
    return result


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def test_a_stream_is_timed_event_by_event_even_when_pieces_split_events():
    first, second = event(choices=[{"text": "a"}]), event(choices=[{"text": "é"}])
    usage = event(choices=[], usage={"completion_tokens": 4})
    data = first + b": comment\n\n" + second + usage + b"data: [DONE]\n\n"
    result = measured(data[:10], data[10:45], data[45:], pause_s=0.01)
    assert (result.error, result.text, result.output_tokens) == (None, "aé", 4)
    assert len(result.itls_s) == 1 and 0 < result.ttft_s <= result.latency_s
    assert result.latency_s == pytest.approx(result.ttft_s + result.itls_s[0])


def test_the_first_chunk_of_a_chat_has_no_token():
    role = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    result = measured(role, event(choices=[{"delta": {"content": "a"}}]), backend="openai-chat")
    assert (result.text, result.output_tokens, result.itls_s) == ("a", 1, [])


def test_failures_are_results_too():
    assert measured(event(error={"message": "broken"})).error == '{"message": "broken"}'
    assert "without a token" in (measured(b"data: [DONE]\n\n").error or "")
    assert "not JSON" in (measured(b"data: {\n\n").error or "")
