"""One response from its first state to its last, as the events that tell it. Whole answers are the same, unsent."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from octavo.entrypoints.openai.errors import as_http_error
from octavo.entrypoints.openai.generation import Job
from octavo.entrypoints.openai.logprobs import chat_logprobs
from octavo.entrypoints.openai.protocol.chat import TokenLogprob
from octavo.entrypoints.openai.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    LifecycleEvent,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    PartEvent,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
    TextDeltaEvent,
    TextDoneEvent,
)
from octavo.entrypoints.openai.state import ServerState
from octavo.errors import RequestFailedError
from octavo.types.outputs import CompletionOutput, RequestOutput


class ResponseWriter:
    """Runs a job and keeps `response` as it is now. num_top: candidates per token, None without logprobs"""

    def __init__(self, server: ServerState, response: ResponseObject, job: Job, num_top: int | None) -> None:
        self.response = response
        self._server = server
        self._job = job
        self._num_top = num_top
        self._names = server.token_names(None)
        self._text = OutputText()
        self._item = OutputMessage("msg_" + response.id.removeprefix("resp_"))
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
                        for opening in self._opening():
                            yield opening
                    (completion,) = item.output.outputs
                    delta = self._take(item.output, completion)
                    if delta is not None:
                        yield delta
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

    # -- begin -----------------------------------------------------------------------------------------------------

    def _opening(self) -> list[ResponseEvent]:
        self.response.status = "in_progress"
        events: list[ResponseEvent] = [self._lifecycle("created"), self._lifecycle("in_progress")]
        empty = OutputMessage(self._item.id)
        events.append(ItemEvent("response.output_item.added", self._next(), empty))
        events.append(PartEvent("response.content_part.added", self._next(), self._item.id, OutputText()))
        return events

    def _lifecycle(self, kind: str) -> LifecycleEvent:
        return LifecycleEvent(f"response.{kind}", self._next(), self.response)

    # -- text ------------------------------------------------------------------------------------------------------

    def _take(self, output: RequestOutput, completion: CompletionOutput) -> TextDeltaEvent | None:
        """Add what is new; return the event that tells it, if there is anything to tell."""
        self._num_tokens += len(completion.token_ids)
        self._num_cached = output.num_cached_tokens or self._num_cached
        logprobs = self._logprobs(completion)
        self._text.text += completion.text
        self._text.logprobs = [*self._text.logprobs, *logprobs] if logprobs else self._text.logprobs
        if not completion.text and not logprobs:
            return None
        return TextDeltaEvent("response.output_text.delta", self._next(), self._item.id, completion.text, logprobs)

    def _logprobs(self, completion: CompletionOutput) -> list[TokenLogprob]:
        if self._num_top is None or not completion.logprobs:
            return []
        return chat_logprobs(self._names, completion.token_ids, completion.logprobs, self._num_top).content or []

    # -- end -------------------------------------------------------------------------------------------------------

    def _closing(self, completion: CompletionOutput) -> list[ResponseEvent]:
        if completion.finish_reason == "abort":
            raise RequestFailedError("the request was aborted: the server stops, or its engine was paused")
        is_whole = completion.finish_reason != "length"
        self._item.status = "completed" if is_whole else "incomplete"
        self._item.content = [self._text]
        text = self._text
        events: list[ResponseEvent] = [
            TextDoneEvent("response.output_text.done", self._next(), self._item.id, text.text, text.logprobs),
            PartEvent("response.content_part.done", self._next(), self._item.id, text),
            ItemEvent("response.output_item.done", self._next(), self._item),
        ]
        response = self.response
        response.output = [self._item]
        response.status = self._item.status
        response.completed_at = int(time.time()) if is_whole else None
        response.incomplete_details = None if is_whole else IncompleteDetails("max_output_tokens")
        response.usage = self._usage()
        return [*events, self._lifecycle(response.status)]

    def _usage(self) -> ResponseUsage:
        num_input = self._job.num_prompt_tokens
        cached = InputTokensDetails(self._num_cached)
        total = num_input + self._num_tokens
        return ResponseUsage(num_input, self._num_tokens, total, cached, OutputTokensDetails())

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1
