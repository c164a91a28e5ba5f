"""One benchmark request: its body for each kind of endpoint, the streamed answer, and the moments that matter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from octavo.entrypoints.bench.client import Client, ConnectionLost
from octavo.entrypoints.bench.datasets import BenchPrompt

_MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class RequestOptions:
    """What all requests of a run have in common. fields: further ones of the body."""

    model: str
    path: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RequestResult:
    """What became of one request; times in seconds, start_s of time.perf_counter().

    ttft_s: from sending to the first token; itls_s: between two events with tokens; latency_s: to the end
    output_tokens: as the server counted them, else one per event
    """

    prompt_len: int
    start_s: float = 0.0
    latency_s: float = 0.0
    ttft_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    output_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


@dataclass(frozen=True)
class Backend:
    """A kind of endpoint. body: the fields for a prompt; text: of a chunk's choice."""

    path: str
    body: Callable[[BenchPrompt], dict[str, Any]]
    text: Callable[[Mapping[str, Any]], str | None]


def _completion_body(prompt: BenchPrompt) -> dict[str, Any]:
    return {"prompt": prompt.text, "max_tokens": prompt.output_len}


def _chat_body(prompt: BenchPrompt) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt.text}]
    return {"messages": messages, "max_completion_tokens": prompt.output_len}


def _completion_text(choice: Mapping[str, Any]) -> str | None:
    text = choice.get("text")
    return text if isinstance(text, str) else None


def _chat_text(choice: Mapping[str, Any]) -> str | None:
    """Return a chunk's text; None for the first chunk, which has only the role."""
    delta = choice.get("delta") or {}
    if delta.get("role") and not delta.get("content"):
        return None
    text = delta.get("content") or delta.get("reasoning") or ""
    return str(text)


_COMPLETIONS = Backend("/v1/completions", _completion_body, _completion_text)
BACKENDS: Mapping[str, Backend] = {
    "openai": _COMPLETIONS,
    "vllm": _COMPLETIONS,
    "octavo": _COMPLETIONS,
    "openai-chat": Backend("/v1/chat/completions", _chat_body, _chat_text),
}


async def send(client: Client, backend: Backend, options: RequestOptions, prompt: BenchPrompt) -> RequestResult:
    """Run one request to its end; what goes wrong is in the result."""
    body = {
        "model": options.model,
        **backend.body(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        **options.fields,
    }
    data = json.dumps(body).encode()
    result = RequestResult(prompt.prompt_len, time.perf_counter())
    try:
        async with client.request("POST", options.path, data) as response:
            if response.status != 200:
                text = (await response.read()).decode("utf-8", "replace")
                result.error = f"status {response.status}: {text[:_MAX_ERROR_CHARS]}"
                return result
            reader = _StreamReader(backend, result)
            async with aclosing(response.pieces()) as pieces:
                async for piece in pieces:
                    reader.feed(piece)
            reader.close()
    except ConnectionLost as error:
        result.error = str(error)
    return result


class _StreamReader:
    """Takes the bytes of server-sent events and notes when which token came."""

    def __init__(self, backend: Backend, result: RequestResult) -> None:
        self._backend = backend
        self._result = result
        self._rest = b""
        self._last_s = 0.0
        self._num_events = 0
        self._counted_tokens: int | None = None

    def feed(self, data: bytes) -> None:
        """Take what has just arrived."""
        now_s = time.perf_counter()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now_s)

    def close(self) -> None:
        """Say how it ended: without a token, the request has failed."""
        result = self._result
        result.output_tokens = self._num_events if self._counted_tokens is None else self._counted_tokens
        if result.error is None and not self._last_s:
            result.error = "the stream ended without a token"
        result.latency_s = self._last_s - result.start_s

    def _take(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            self._result.error = f"an event is not JSON: {data[:_MAX_ERROR_CHARS]!r}"
            return
        if event.get("error"):
            self._result.error = json.dumps(event["error"])[:_MAX_ERROR_CHARS]
            return
        usage = event.get("usage")
        if usage:
            self._counted_tokens = usage.get("completion_tokens")
        for choice in event.get("choices") or ():
            text = self._backend.text(choice)
            if text is not None:
                self._note(text, now_s)

    def _note(self, text: str, now_s: float) -> None:
        result = self._result
        if not self._last_s:
            result.ttft_s = now_s - result.start_s
        else:
            result.itls_s.append(now_s - self._last_s)
        self._last_s = now_s
        self._num_events += 1
        result.text += text
