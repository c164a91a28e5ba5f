"""The answer to a chat completion: from the engine's outputs to a whole response, or to the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from msgspec import UNSET, UnsetType

from octavo.entrypoints.answers import AnswerReader
from octavo.entrypoints.openai.conversation_job import ConversationJob
from octavo.entrypoints.openai.http import DONE, Events, event
from octavo.entrypoints.openai.logprobs import chat_logprobs
from octavo.entrypoints.openai.protocol.chat import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from octavo.entrypoints.openai.protocol.common import Usage
from octavo.entrypoints.openai.protocol.tools import FunctionCall, FunctionCallDelta, ToolCall, ToolCallDelta
from octavo.entrypoints.openai.state import ServerState
from octavo.entrypoints.openai.usage import StreamUsage, UsageCounter, total_usage
from octavo.parsing.interface import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallStart,
    collect,
)
from octavo.types.outputs import CompletionOutput
from octavo.types.sampling_params import BeamSearchParams


@dataclass(frozen=True)
class ChatPlan:
    """What runs, and how its outputs are shown.

    prefix: echo, text before the answer
    num_top: candidates per token, None without logprobs
    """

    conversation: ConversationJob
    num_choices: int
    beams: BeamSearchParams | None
    role: str
    prefix: str
    num_top: int | None


class ChatAnswer:
    """Turns the outputs of one request into its response."""

    def __init__(
        self, server: ServerState, request: ChatCompletionRequest, plan: ChatPlan, response_id: str, model: str
    ) -> None:
        self._server = server
        self._request = request
        self._plan = plan
        self._id = response_id
        self._model = model
        self._created = int(time.time())
        self._names = server.token_names(request.return_tokens_as_token_ids)
        self._readers: dict[int, AnswerReader] = {}  # by choice

    # -- whole -----------------------------------------------------------------------------------------------------

    async def whole(self) -> ChatCompletionResponse:
        """Run to the end and return the response."""
        plan, runner = self._plan, self._server.runner
        if plan.beams is None:
            (output,) = await runner.run_to_end(plan.conversation.job)
        else:
            (output,) = await runner.run_beams(plan.conversation.job, plan.beams, plan.num_top)
        choices = [self._whole_choice(completion) for completion in output.outputs]
        usage = total_usage([output], self._server.args.enable_prompt_tokens_details)
        usage.tell_reasoning(self._num_reasoning_tokens())
        response = ChatCompletionResponse(
            self._id, "chat.completion", self._created, self._model, choices, usage, self._server.fingerprint
        )
        if self._request.prompt_logprobs is not None:
            response.prompt_logprobs = cast("list[dict[str, Any] | None]", output.prompt_logprobs)
        if self._request.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids or []
        if self._request.return_prompt_text:
            response.prompt_text = output.prompt or ""
        return response

    def _whole_choice(self, completion: CompletionOutput) -> ChatChoice:
        reader = self._reader(completion.index)
        parsed = collect(reader.read(completion))
        calls = [ToolCall(call.id, FunctionCall(call.name, call.arguments)) for call in parsed.tool_calls]
        content: str | None = self._plan.prefix + (parsed.content or "")
        if not content and (calls or parsed.reasoning is not None):
            content = None
        return ChatChoice(
            completion.index,
            ChatMessage(self._plan.role, content, tool_calls=calls, reasoning=parsed.reasoning),
            self._logprobs(completion),
            reader.finish_reason(completion),
            completion.stop_reason,
            list(completion.token_ids) if self._request.return_token_ids else UNSET,
        )

    # -- stream ----------------------------------------------------------------------------------------------------

    async def events(self) -> Events:
        """Yield the events of a streamed response: per choice first its role, then what it says and calls."""
        job = self._plan.conversation.job
        options = StreamUsage(self._request.stream_options, self._server.args.enable_force_include_usage)
        counter = UsageCounter(job.num_prompt_tokens, self._server.args.enable_prompt_tokens_details)
        started = False
        async with aclosing(self._server.runner.stream(job)) as outputs:
            async for item in outputs:
                if not started:
                    started = True
                    yield self._first_events(options, counter)
                for completion in item.output.outputs:
                    counter.add(item.prompt_index, item.output, len(completion.token_ids))
                    choices = self._next_choices(completion)
                    for choice in choices:
                        yield event(self._chunk([choice], options, counter))
                    if not choices and options.in_every_chunk:
                        yield event(self._chunk([], options, counter))
        if options.at_end:
            yield event(self._chunk_of([], self._usage(counter)))
        yield DONE

    def _first_events(self, options: StreamUsage, counter: UsageCounter) -> bytes:
        """Return the events that open every choice: the role, and the echo."""
        pieces: list[bytes] = []
        for index in range(self._plan.num_choices):
            delta = ChatDelta(role=self._plan.role, content="")
            chunk = self._chunk([ChatChunkChoice(index, delta)], options, counter)
            if self._request.return_token_ids and index == 0:
                chunk.prompt_token_ids = self._plan.conversation.job.prompts[0]["prompt_token_ids"]
            pieces.append(event(chunk))
            if self._plan.prefix:
                echo = ChatChunkChoice(index, ChatDelta(content=self._plan.prefix))
                pieces.append(event(self._chunk([echo], options, counter)))
        return b"".join(pieces)

    def _next_choices(self, completion: CompletionOutput) -> list[ChatChunkChoice]:
        """Return what is new in a choice, in order: none, if nothing can be shown yet.

        The first one has the logprobs and ids of all new tokens, the last one tells why the answer ended.
        """
        reader = self._reader(completion.index)
        deltas = _deltas(reader.read(completion))
        logprobs = self._logprobs(completion)
        if not deltas and (completion.finished() or logprobs is not None or self._request.return_token_ids):
            deltas = [ChatDelta()]
        choices = [ChatChunkChoice(completion.index, delta) for delta in deltas]
        if choices:
            choices[0].logprobs = logprobs
            if self._request.return_token_ids:
                choices[0].token_ids = list(completion.token_ids)
            if completion.finished():
                choices[-1].finish_reason = reader.finish_reason(completion)
                choices[-1].stop_reason = completion.stop_reason
        return choices

    def _chunk(
        self, choices: list[ChatChunkChoice], options: StreamUsage, counter: UsageCounter
    ) -> ChatCompletionChunk:
        usage = self._usage(counter) if options.in_every_chunk else None if options.at_end else UNSET
        return self._chunk_of(choices, usage)

    def _chunk_of(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            self._id, "chat.completion.chunk", self._created, self._model, choices, usage, self._server.fingerprint
        )

    def _usage(self, counter: UsageCounter) -> Usage:
        usage = counter.usage()
        usage.tell_reasoning(self._num_reasoning_tokens())
        return usage

    # -- both ------------------------------------------------------------------------------------------------------

    def _reader(self, index: int) -> AnswerReader:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._plan.conversation.reader(self._server.tokenizer)
        return reader

    def _num_reasoning_tokens(self) -> int | None:
        """Return how many tokens of all answers were reasoning; None for a model that is not known to reason."""
        if self._plan.conversation.answers.reasoning_format is None:
            return None
        return sum(reader.num_reasoning_tokens for reader in self._readers.values())

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        num_top = self._plan.num_top
        if num_top is None or not completion.logprobs:
            return None
        return chat_logprobs(self._names, completion.token_ids, completion.logprobs, num_top)


def _deltas(events: Sequence[ParserEvent]) -> list[ChatDelta]:
    """Return events as OpenAI's clients add them up."""
    deltas: list[ChatDelta] = []
    for item in events:
        if isinstance(item, ReasoningDelta):
            deltas.append(ChatDelta(reasoning=item.text))
        elif isinstance(item, ContentDelta):
            deltas.append(ChatDelta(content=item.text))
        elif isinstance(item, ToolCallStart):
            function = FunctionCallDelta("", item.name)
            deltas.append(ChatDelta(tool_calls=[ToolCallDelta(item.index, function, item.id, "function")]))
        elif isinstance(item, ToolCallArgumentsDelta):
            deltas.append(ChatDelta(tool_calls=[ToolCallDelta(item.index, FunctionCallDelta(item.json_text))]))
    return deltas
