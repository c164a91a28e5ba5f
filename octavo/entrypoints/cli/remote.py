"""A server with OpenAI's API as the commands use it: one request after the other, answers piece by piece."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from octavo import envs
from octavo.entrypoints.cli.answering import Piece
from octavo.entrypoints.cli.prompts import Message
from octavo.errors import ConfigError, InvalidRequestError, RequestFailedError
from octavo.utils.interrupts import PendingInterrupt

DEFAULT_URL = "http://localhost:8000/v1"
_TIMEOUT_S = 600.0  # a busy server may take long over the first token
_REQUEST_NAMES = {"extra_args": "vllm_xargs"}  # SamplingParams' name -> the request field's


def add_server_arguments(parser: argparse.ArgumentParser, default_url: str | None) -> None:
    """Add the flags that name a server."""
    group = parser.add_argument_group("server", "a server that runs already, `octavo serve` or any other")
    text = f" (default: {default_url})" if default_url else " instead of loading a model here"
    group.add_argument("--url", metavar="URL", default=default_url, help=f"use this server{text}")
    group.add_argument("--model-name", metavar="NAME", help="name of the model there (default: the first)")
    group.add_argument("--api-key", metavar="KEY", help="key that the server asks for (OCTAVO_API_KEY)")


class RemoteServer:
    """Raises InvalidRequestError for a refused request, RequestFailedError when the server cannot be used."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"expected a URL such as {DEFAULT_URL}, got {url!r}")
        self._url = url
        self._connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._address = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._model = model

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> RemoteServer:
        """Use the server that the flags name."""
        return cls(args.url, args.model_name, args.api_key or next(iter(envs.api_keys()), None))

    @property
    def model(self) -> str:
        """The model that is asked; the server's first one unless named."""
        if self._model is None:
            connection, response = self._send("GET", "/models", None)
            with contextlib.closing(connection):
                models = json.loads(response.read()).get("data")
            if not models:
                raise RequestFailedError(f"the server at {self._url} serves no model")
            self._model = str(models[0]["id"])
        return self._model

    def stream_chat(
        self, messages: list[Message], sampling: Mapping[str, Any], interrupt: PendingInterrupt
    ) -> Iterator[Piece]:
        """Yield the pieces of an answer; an interruption ends it after the piece that is under way."""
        yield from self._stream("/chat/completions", {"messages": messages}, sampling, interrupt)

    def stream_completion(
        self, prompt: str, sampling: Mapping[str, Any], interrupt: PendingInterrupt
    ) -> Iterator[Piece]:
        """Yield the pieces of a continuation."""
        yield from self._stream("/completions", {"prompt": prompt}, sampling, interrupt)

    def _stream(
        self, path: str, content: Mapping[str, Any], sampling: Mapping[str, Any], interrupt: PendingInterrupt
    ) -> Iterator[Piece]:
        fields = {_REQUEST_NAMES.get(name, name): value for name, value in sampling.items()}
        wishes = {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({"model": self.model, **content, **fields, **wishes})
        connection, response = self._send("POST", path, body)
        with contextlib.closing(connection):
            for line in response:
                if line.startswith(b"data: {"):
                    yield _piece(json.loads(line[len(b"data: ") :]))
                if interrupt.requested:
                    return

    def _send(
        self, method: str, path: str, body: str | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection_class(self._address, timeout=_TIMEOUT_S)
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise RequestFailedError(
                f"cannot use the server at {self._url}: {error}; start one with `octavo serve`"
            ) from error
        if response.status != 200:
            with contextlib.closing(connection):
                message = _error_message(response.read()) or f"HTTP status {response.status}"
            if response.status == 401:
                message += "; --api-key or OCTAVO_API_KEY sets the key that is sent"
            if response.status == 404 and not self._path.endswith("/v1"):
                message += f"; {self._url} should end in /v1, where OpenAI's API is"
            if 400 <= response.status < 500:
                raise InvalidRequestError(message)
            raise RequestFailedError(message)
        return connection, response


def _piece(event: Mapping[str, Any]) -> Piece:
    error = event.get("error")
    if error:
        return Piece("", 0, str(error.get("message", error)))
    usage = event.get("usage") or {}
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    text = choices[0].get("text") or delta.get("content") or ""
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return Piece(text, usage.get("completion_tokens", 0), None, reasoning)


def _error_message(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
