"""Batch files in OpenAI's format: a request a line in, a response a line out, in the same order.

Requests run through the same functions as those of the HTTP server, without HTTP. A bad line gets an error; the others
go on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.entrypoints.openai.body import load_json, typed, warn_of_unknown
from octavo.entrypoints.openai.chat import create_chat_completion
from octavo.entrypoints.openai.completions import create_completion
from octavo.entrypoints.openai.embeddings import create_embeddings
from octavo.entrypoints.openai.errors import HTTPError, as_http_error, error_body, named_as_in
from octavo.entrypoints.openai.http import JSONHandler
from octavo.entrypoints.openai.protocol.chat import ChatCompletionRequest
from octavo.entrypoints.openai.protocol.common import ErrorResponse
from octavo.entrypoints.openai.protocol.completions import CompletionRequest
from octavo.entrypoints.openai.protocol.pooling import EmbeddingRequest, RerankRequest, ScoreRequest
from octavo.entrypoints.openai.rerank import create_scores, rerank
from octavo.entrypoints.openai.state import RequestContext, ServerState
from octavo.errors import EngineDeadError, InvalidRequestError

ENDPOINTS: Mapping[str, tuple[type[msgspec.Struct], JSONHandler[Any]]] = {
    "/v1/chat/completions": (ChatCompletionRequest, create_chat_completion),
    "/v1/completions": (CompletionRequest, create_completion),
    "/v1/embeddings": (EmbeddingRequest, create_embeddings),
    **dict.fromkeys(("/score", "/v1/score"), (ScoreRequest, create_scores)),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), (RerankRequest, rerank)),
}
_LINE_FIELDS = ("custom_id", "method", "url", "body")


class BatchResponse(msgspec.Struct):
    """What an HTTP server would have answered."""

    status_code: int
    request_id: str
    body: msgspec.Struct


class BatchError(msgspec.Struct):
    """Why there is no answer."""

    code: str
    message: str


class BatchResult(msgspec.Struct):
    """A line of the output; custom_id is the input line's, null if it has none that is text."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None


@dataclass
class BatchCounts:
    """How many lines were answered, and how many got an error."""

    completed: int = 0
    failed: int = 0


async def run_batch(
    server: ServerState, lines: Iterable[bytes], write: Callable[[bytes], object], max_in_flight: int
) -> BatchCounts:
    """Answer every line that is not blank; write a JSON line for each, in order, as soon as it can leave.

    max_in_flight: lines that are read ahead of the next one to be written, so memory does not grow with the file
    Raises EngineDeadError when there is no engine any more; what was written until then stands.
    """
    counts = BatchCounts()
    in_flight: deque[asyncio.Task[BatchResult]] = deque()
    seen: set[str] = set()

    async def write_next() -> None:
        result = await in_flight[0]
        in_flight.popleft()
        counts.completed += result.error is None
        counts.failed += result.error is not None
        write(msgspec.json.encode(result) + b"\n")

    try:
        for number, line in _not_blank(lines):
            in_flight.append(asyncio.create_task(_answer(server, number, line, seen)))
            while in_flight and (len(in_flight) >= max_in_flight or in_flight[0].done()):
                await write_next()
            await asyncio.sleep(0)  # let the requests start while the file is read
        while in_flight:
            await write_next()
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
    return counts


def _not_blank(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield number and content."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


@dataclass(frozen=True)
class _Line:
    url: str
    body: dict[str, Any]


async def _answer(server: ServerState, number: int, data: bytes, seen: set[str]) -> BatchResult:
    """Return the result of one line; number: its place in the file; seen: the custom ids of earlier lines."""
    custom_id: str | None = None
    try:
        fields = _fields(data)
        given = fields.get("custom_id")
        custom_id = given if isinstance(given, str) else None
        line = _check(fields, custom_id, seen)
        request_type, handler = ENDPOINTS[line.url]
        request = typed(line.body, request_type)
        with named_as_in(request):
            body = await handler(server, request, RequestContext(None))
    except EngineDeadError:
        raise
    except Exception as error:
        refusal = as_http_error(error)
        if custom_id is None:  # nothing else tells which line it was
            refusal.message = f"line {number}: {refusal.message}"
        return _refusal(custom_id, refusal)
    assert isinstance(body, msgspec.Struct), "a line that asks for a stream was refused before"
    return BatchResult(_new_id("batch"), custom_id, BatchResponse(200, _new_id("req"), body), None)


def _fields(data: bytes) -> dict[str, Any]:
    value = load_json(data)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"a line must be a JSON object, got {type(value).__name__}")
    return value


def _check(fields: dict[str, Any], custom_id: str | None, seen: set[str]) -> _Line:
    """Return what a line asks for; raises InvalidRequestError, or HTTPError 404 for an unknown endpoint."""
    if custom_id is None:
        raise InvalidRequestError("custom_id must be text", "custom_id")
    if custom_id in seen:
        raise InvalidRequestError(f"custom_id {custom_id[:80]!r} stands on an earlier line already", "custom_id")
    seen.add(custom_id)
    warn_of_unknown("batch line", fields, _LINE_FIELDS)
    if fields.get("method") != "POST":
        raise InvalidRequestError(f'method must be "POST", got {str(fields.get("method"))[:80]!r}', "method")
    url, body = fields.get("url"), fields.get("body")
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise HTTPError(404, f"url must be one of {', '.join(ENDPOINTS)}; got {str(url)[:80]!r}", parameter="url")
    if not isinstance(body, dict):
        raise InvalidRequestError("body must be an object", "body")
    if body.get("stream"):
        raise InvalidRequestError("stream is not possible in a batch file; leave it out", "stream")
    return _Line(url, body)


def _refusal(custom_id: str | None, error: HTTPError) -> BatchResult:
    described: ErrorResponse = error_body(error)
    response = BatchResponse(error.status, _new_id("req"), described)
    return BatchResult(_new_id("batch"), custom_id, response, BatchError(described.error.type, error.message))


def _new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"
