"""A loaded engine as the commands use it: requests in, pieces of answers out, interruptible between steps."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from octavo import envs
from octavo.config.engine_args import EngineArgs
from octavo.entrypoints.cli.answering import Piece
from octavo.entrypoints.cli.arguments import given_engine_options
from octavo.entrypoints.cli.prompts import Message, PromptItem
from octavo.types.outputs import RequestOutput
from octavo.types.prompts import PromptType
from octavo.types.sampling_params import RequestOutputKind, SamplingParams
from octavo.utils.interrupts import PendingInterrupt

if TYPE_CHECKING:
    from octavo.engine.llm_engine import LLMEngine
    from octavo.tokenizers.tokenizer import Tokenizer


class Session:
    """One engine, its tokenizer and its defaults."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._num_requests = 0

    @classmethod
    def from_arguments(cls, args: argparse.Namespace, needs_template: bool = False) -> Session:
        """Load the model that the engine flags describe; only warnings are logged unless asked otherwise.

        needs_template: raise InvalidRequestError, before the weights are read, unless it has a chat template
        """
        if not args.verbose and "OCTAVO_LOG_LEVEL" not in envs.settings():
            logging.getLogger("octavo").setLevel(logging.WARNING)
        from octavo.engine.llm_engine import LLMEngine

        check = [_require_template] if needs_template else []
        return cls(LLMEngine.from_engine_args(EngineArgs.from_kwargs(**given_engine_options(args)), *check))

    def sampling_params(self, given: Mapping[str, Any], max_tokens: int, kind: RequestOutputKind) -> SamplingParams:
        """Merge what was given over the model's defaults, and these over the command's own max_tokens."""
        defaults = {"max_tokens": max_tokens, **self.default_sampling_params()}
        return SamplingParams.from_defaults(defaults, {**given, "output_kind": kind})

    def default_sampling_params(self) -> Mapping[str, object]:
        """Return what the model's generation config says, by name."""
        return self._engine.config.model.default_sampling_params

    def prompt_of(self, item: PromptItem) -> PromptType:
        """Return what the engine takes: text, token ids, or a conversation rendered by the model's chat template."""
        if item.messages is not None:
            return self.render(item.messages)
        if item.token_ids is not None:
            return {"prompt_token_ids": item.token_ids}
        return {"prompt": item.text or ""}

    def render(self, messages: list[Message]) -> PromptType:
        """Render a conversation, with the header of the answer to come, into token ids."""
        token_ids = self._engine.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
        return {"prompt_token_ids": cast("list[int]", token_ids)}

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

    def stream_chat(
        self, messages: list[Message], sampling: Mapping[str, Any], max_tokens: int, interrupt: PendingInterrupt
    ) -> Iterator[Piece]:
        """Run one conversation and yield the pieces of its answer; an interruption ends it between steps."""
        params = self.sampling_params(sampling, max_tokens, RequestOutputKind.DELTA)
        for output in self.stream(self.render(messages), params, interrupt):
            (completion,) = output.outputs
            error = str(completion.stop_reason) if completion.finish_reason == "error" else None
            yield Piece(completion.text, len(completion.token_ids), error)

    def stream(
        self, prompt: PromptType, params: SamplingParams, interrupt: PendingInterrupt
    ) -> Iterator[RequestOutput]:
        """Run one request (output kind DELTA) and yield its pieces; an interruption ends it between steps."""
        request_id = self.start(prompt, params)
        while self._engine.has_unfinished_requests():
            yield from self._engine.step()
            if interrupt.requested:
                self.abort([request_id])


def _require_template(tokenizer: Tokenizer | None) -> None:
    from octavo.tokenizers.chat_template import ChatOptions, choose_template

    if tokenizer is not None:
        choose_template(tokenizer, ChatOptions())
