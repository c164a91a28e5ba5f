"""A command line without a model: the session answers from a script."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.entrypoints.cli import session as session_module
from octavo.entrypoints.cli.main import main
from octavo.entrypoints.cli.session import Session
from octavo.errors import InvalidRequestError
from octavo.types.outputs import CompletionOutput, RequestOutput
from octavo.types.sampling_params import RequestOutputKind, SamplingParams


@dataclass
class ScriptedEngine:
    """Answers each prompt with the reversed words of it, one word a step, the last added request first.

    defaults: what a model's generation config would say
    """

    defaults: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    max_words: int | None = None  # of a prompt
    failing: tuple[str, ...] = ()
    added: list[tuple[str, Any, SamplingParams]] = field(default_factory=list)
    running: dict[str, list[str]] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    on_step: Callable[[], None] | None = None

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams) -> None:
        text = prompt.get("prompt") or " ".join(map(str, prompt["prompt_token_ids"]))
        if text in self.refused:
            raise InvalidRequestError("the prompt has 9000 tokens, the limit is 8192", "prompt")
        if self.max_words is not None and len(text.split()) > self.max_words:
            raise InvalidRequestError(
                f"the prompt has {len(text)} tokens, but max_model_len=512 includes one", "prompt"
            )
        self.added.append((request_id, prompt, params))
        self.running[request_id] = text.split()

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> list[RequestOutput]:
        if self.on_step is not None:
            self.on_step()
        request_id = list(self.running)[-1]
        params = next(params for id, _, params in self.added if id == request_id)
        words = self.running[request_id]
        if params.output_kind == RequestOutputKind.DELTA:
            pieces = [words.pop()]
        else:
            pieces, words = words[::-1], []
        if not words:
            del self.running[request_id]
        failed = not words and any(word in self.failing for word in pieces)
        reason = None if words else ("error" if failed else "stop")
        completion = CompletionOutput(
            0, "".join(f"{word} " for word in pieces), list(range(len(pieces))), finish_reason=reason
        )
        completion.stop_reason = "the logits hold NaN" if failed else None
        return [RequestOutput(request_id, None, [1, 2], None, [completion], finished=not words)]


class ScriptedSession(Session):
    """A session on a ScriptedEngine; conversations are rendered as `role:content` words."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine  # type: ignore[assignment]
        self._num_requests = 0

    def default_sampling_params(self) -> dict[str, Any]:
        return self._engine.defaults  # type: ignore[attr-defined]

    def render(self, messages: list[dict[str, Any]]) -> Any:
        return {"prompt": " ".join(f"{one['role']}:{one['content']}" for one in messages)}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """Make every command of this test run on a scripted engine, and return it."""
    scripted = ScriptedEngine()

    def from_arguments(args: argparse.Namespace, needs_template: bool = False) -> ScriptedSession:
        return ScriptedSession(scripted)

    monkeypatch.setattr(session_module.Session, "from_arguments", from_arguments)
    return scripted


@dataclass
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def octavo(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Result]]:
    """Return a function that runs the command line in this process."""

    def run(*arguments: str) -> Result:
        try:
            status = main(arguments)
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    yield run
