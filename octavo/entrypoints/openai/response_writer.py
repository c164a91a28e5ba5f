"""One response from its first state to its last, as the events that tell it. Whole answers are the same, unsent."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from octavo.entrypoints.openai.conversation_job import ConversationJob, check_not_aborted
from octavo.entrypoints.openai.errors import as_http_error
from octavo.entrypoints.openai.logprobs import chat_logprobs
from octavo.entrypoints.openai.protocol.chat import TokenLogprob
from octavo.entrypoints.openai.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    LifecycleEvent,
    OutputTokensDetails,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from octavo.entrypoints.openai.response_items import OutputItems
from octavo.entrypoints.openai.state import ServerState
from octavo.types.outputs import CompletionOutput, RequestOutput


class ResponseWriter:
    """Runs a job and keeps `response` as it is now. num_top: candidates per token, None without logprobs"""

    def __init__(
        self, server: ServerState, response: ResponseObject, job: ConversationJob, num_top: int | None
    ) -> None:
        self.response = response
        self._server = server
        self._job = job.job
        self._reader = job.reader(server.tokenizer)
        self._num_top = num_top
        self._names = server.token_names(None)
        self._items = OutputItems(response.id, self._next)
        self._num_events = 0
        self._num_tokens = 0
        self._num_cached = 0

    async def events(self) -> AsyncGenerator[ResponseEvent, None]:
        """Run to the end. What fails before anything came is raised, what fails later is the last event."""
        started = False
        try:
            async with aclosing(self._server.runner.stream(self._job)) as outputs:
                async for item in outputs:
                    if not started:
                        started = True
                        self.response.status = "in_progress"
                        yield self._lifecycle("created")
                        yield self._lifecycle("in_progress")
                    (completion,) = item.output.outputs
                    for news in self._take(item.output, completion):
                        yield news
                    if completion.finished():
                        for closing in self._closing(completion):
                            yield closing
        except Exception as error:
            self.fail(error)
            if not started:
                raise
            yield self._lifecycle("failed")

    def fail(self, error: BaseException) -> None:
        """Note that there will be no answer."""
        self.response.status = "failed"
        self.response.error = ResponseError("server_error", as_http_error(error).message)

    def _lifecycle(self, kind: str) -> LifecycleEvent:
        return LifecycleEvent(f"response.{kind}", self._next(), self.response)

    # -- output ----------------------------------------------------------------------------------------------------

    def _take(self, output: RequestOutput, completion: CompletionOutput) -> list[ResponseEvent]:
        """Add what is new; return the events that tell it, if there is anything to tell."""
        self._num_tokens += len(completion.token_ids)
        self._num_cached = output.num_cached_tokens or self._num_cached
        logprobs = self._logprobs(completion)
        events = self._reader.read(completion)
        if self._reader.is_plain and logprobs:
            return self._items.add_text(completion.text, logprobs)
        return self._items.take(events, logprobs)

    def _logprobs(self, completion: CompletionOutput) -> list[TokenLogprob]:
        if self._num_top is None or not completion.logprobs:
            return []
        return chat_logprobs(self._names, completion.token_ids, completion.logprobs, self._num_top).content or []

    # -- end -------------------------------------------------------------------------------------------------------

    def _closing(self, completion: CompletionOutput) -> list[ResponseEvent]:
        check_not_aborted(completion)
        is_whole = completion.finish_reason != "length"
        events = self._items.finish(is_whole)
        response = self.response
        response.output = self._items.items
        response.status = "completed" if is_whole else "incomplete"
        response.completed_at = int(time.time()) if is_whole else None
        response.incomplete_details = None if is_whole else IncompleteDetails("max_output_tokens")
        response.usage = self._usage()
        return [*events, self._lifecycle(response.status)]

    def _usage(self) -> ResponseUsage:
        num_input = self._job.num_prompt_tokens
        cached = InputTokensDetails(self._num_cached)
        total = num_input + self._num_tokens
        spent = OutputTokensDetails(self._reader.num_reasoning_tokens)
        return ResponseUsage(num_input, self._num_tokens, total, cached, spent)

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1
