"""A loaded engine as the commands use it: requests in, pieces of answers out, interruptible between steps."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo import envs
from octavo.entrypoints.cli.arguments import given_engine_options
from octavo.entrypoints.cli.prompts import Message, PromptItem
from octavo.types.outputs import RequestOutput
from octavo.types.prompts import PromptType
from octavo.types.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from octavo.entrypoints.llm import LLM


@dataclass(slots=True)
class Interruption:
    """Whether Ctrl-C came since the answer began."""

    requested: bool = False


class Session:
    """One engine, its tokenizer and its defaults."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._engine = llm.llm_engine
        self._num_requests = 0

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> Session:
        """Load the model that the engine flags describe; only warnings are logged unless asked otherwise."""
        if not args.verbose and "OCTAVO_LOG_LEVEL" not in envs.settings():
            logging.getLogger("octavo").setLevel(logging.WARNING)
        options: dict[str, Any] = {"use_tqdm_on_load": sys.stderr.isatty(), **given_engine_options(args)}
        from octavo.entrypoints.llm import LLM

        return cls(LLM(**options))

    def sampling_params(self, overrides: Mapping[str, Any], kind: RequestOutputKind) -> SamplingParams:
        """Merge the model's defaults with what was given; what was given wins."""
        return SamplingParams.from_defaults(self.default_sampling_params(), {**overrides, "output_kind": kind})

    def default_sampling_params(self) -> Mapping[str, object]:
        """Return what the model's generation config says, by name."""
        return self._engine.model_config.default_sampling_params

    def prompt_of(self, item: PromptItem) -> PromptType:
        """Return what the engine takes: text, token ids, or a conversation rendered by the model's chat template."""
        if item.messages is not None:
            return self.render(item.messages)
        if item.token_ids is not None:
            return {"prompt_token_ids": item.token_ids}
        return {"prompt": item.text or ""}

    def render(self, messages: list[Message]) -> PromptType:
        """Render a conversation, with the header of the answer to come, into token ids."""
        return self._llm.preprocess_chat(messages)

    def start(self, prompt: PromptType, params: SamplingParams) -> str:
        """Add a request and return its id; raises InvalidRequestError before anything runs."""
        request_id = f"cli-{self._num_requests}"
        self._num_requests += 1
        self._engine.add_request(request_id, prompt, params)
        return request_id

    def abort(self, request_ids: list[str]) -> None:
        """Drop unfinished requests."""
        self._engine.abort_request(request_ids)

    def outputs(self) -> Iterator[RequestOutput]:
        """Run steps until nothing is left to do, and yield each request's outputs as they come."""
        while self._engine.has_unfinished_requests():
            yield from self._engine.step()

    def stream(self, prompt: PromptType, params: SamplingParams, interruption: Interruption) -> Iterator[RequestOutput]:
        """Run one request (output kind DELTA) and yield its pieces; an interruption ends it between steps."""
        request_id = self.start(prompt, params)
        while self._engine.has_unfinished_requests():
            yield from self._engine.step()
            if interruption.requested:
                self.abort([request_id])


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the first Ctrl-C into a note for `Session.stream`; a second one interrupts as usual."""
    interruption = Interruption()

    def note(signal_number: int, frame: types.FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, previous)
