"""What the front end keeps of one sequence while the core generates it, and the outputs that come of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from octavo.engine.logprobs import LogprobsState, TokenTexts, unpack_prompt_logprobs
from octavo.engine.output_collector import RequestOutputCollector
from octavo.engine.parallel_sampling import ParentRequest
from octavo.engine.text_state import TextState
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.adapters import LoRARequest
from octavo.types.messages import EngineCoreEventType, EngineCoreOutput, PackedArray
from octavo.types.outputs import CompletionOutput, PromptLogprobs, RequestOutput
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.sampling_params import RequestOutputKind
from octavo.types.stats import RequestMetrics


@dataclass(slots=True)
class RequestState:
    """One sequence. collector: where its outputs go; None when the caller of a step takes them.

    engine_index: the replica that computes it
    """

    request: EngineCoreRequest
    external_id: str
    prompt: str | None
    index: int
    parent: ParentRequest | None
    text: TextState | None  # None without detokenisation
    logprobs: LogprobsState | None  # None unless asked for
    texts: TokenTexts | None
    metrics: RequestMetrics
    output_kind: RequestOutputKind
    has_stop_strings: bool
    collector: RequestOutputCollector | None = None
    engine_index: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_tokens_decoded: int = 0  # how many of them the text has: all with stop strings, else those that were read
    num_tokens_hidden: int = 0  # 1 if the last one only ended the sequence: it counts and is not shown
    num_tokens_sent: int = 0  # delta reading: tokens in earlier outputs
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int | None = None
    pooled: PackedArray | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def update(self, output: EngineCoreOutput, timestamp: float) -> int:
        """Take one step's result; return how many new tokens count: none that follow the end of a stop string."""
        if output.events:
            self._record_events(output)
        num_before = len(self.token_ids)
        if not num_before:  # a request that goes on in a new engine process has had its prompt's hits counted
            self.num_cached_tokens = output.num_cached_tokens
        if output.pooled is not None:
            self.pooled = output.pooled
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = unpack_prompt_logprobs(
                output.prompt_logprobs, self.texts, self.request.prompt_token_ids
            )
        self.token_ids += output.new_token_ids
        if output.finish_reason is FinishReason.STOP:
            self.num_tokens_hidden = self._ends_with_hidden_token(output)
        if self.has_stop_strings:
            self._decode()
        num_new = len(self.token_ids) - num_before
        if num_new:
            self._record_tokens(num_new, timestamp)
        if self.logprobs is not None and output.logprobs is not None:
            self.logprobs.add(output.logprobs, num_new)
        if self.has_stop_strings and self.text is not None and self.text.stop_string is not None:
            self.finish(FinishReason.STOP, self.text.stop_string)
        elif output.finish_reason is not None:
            self.finish(output.finish_reason, output.stop_reason)
        return num_new

    def finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        """End the sequence; text that was held back comes out, and may still complete a stop string."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        if self.text is not None:
            self._decode()
            self.text.close()
            if self.text.stop_string is not None:
                self.finish_reason, self.stop_reason = FinishReason.STOP, self.text.stop_string

    def make_output(self) -> RequestOutput | None:
        """Return the output that is due now, or None: nothing new, or not all sequences have finished."""
        finished = self.finish_reason is not None
        if self.parent is not None and finished:
            self.parent.num_finished += 1
        if self.output_kind is RequestOutputKind.FINAL_ONLY:
            return self._final_output() if finished else None
        if not finished and not self._is_output_due():
            return None
        completion = self._completion(delta=self.output_kind is RequestOutputKind.DELTA)
        prompt_logprobs = self.prompt_logprobs
        if self.output_kind is RequestOutputKind.DELTA:
            self.prompt_logprobs = None  # told once
        return self._request_output([completion], prompt_logprobs, self.num_cached_tokens)

    def _is_output_due(self) -> bool:
        """Say whether enough tokens are new; the first ones always are."""
        num_new = len(self.token_ids) - self.num_tokens_sent
        interval = self.request.sampling_params.stream_interval or 1
        return num_new > 0 and (self.num_tokens_sent == 0 or num_new >= interval)

    def _final_output(self) -> RequestOutput | None:
        completion = self._completion(delta=False)
        if self.parent is None:
            return self._request_output([completion], self.prompt_logprobs, self.num_cached_tokens)
        self.parent.take(completion)
        if self.index == 0:
            self.parent.prompt_logprobs = self.prompt_logprobs
            self.parent.num_cached_tokens = self.num_cached_tokens
        if not self.parent.finished:
            return None
        return self._request_output(
            self.parent.ordered_completions(), self.parent.prompt_logprobs, self.parent.num_cached_tokens
        )

    def _request_output(
        self, completions: list[CompletionOutput], prompt_logprobs: PromptLogprobs | None, num_cached_tokens: int | None
    ) -> RequestOutput:
        return RequestOutput(
            request_id=self.external_id,
            prompt=self.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=completions,
            finished=self.parent.finished if self.parent is not None else self.finish_reason is not None,
            metrics=self.metrics,
            lora_request=self._lora_request,
            num_cached_tokens=num_cached_tokens,
            pooled=self.pooled,
        )

    def _completion(self, delta: bool) -> CompletionOutput:
        """Build the completion so far, or (delta) what is new. Lists are copies: an output never changes later."""
        self._decode()
        token_ids = self.token_ids[self.num_tokens_sent if delta else 0 :]
        self.num_tokens_sent = len(self.token_ids)
        return CompletionOutput(
            index=self.index,
            text=self.text.read(delta) if self.text is not None else "",
            token_ids=token_ids,
            cumulative_logprob=self.logprobs.cumulative_logprob if self.logprobs is not None else None,
            logprobs=self.logprobs.read(delta) if self.logprobs is not None else None,
            finish_reason=str(self.finish_reason) if self.finish_reason is not None else None,
            stop_reason=self.stop_reason,
            lora_request=self._lora_request,
        )

    @property
    def _lora_request(self) -> LoRARequest | None:
        return None if self.request.adapter is None else self.request.adapter.as_request()

    def _decode(self) -> None:
        """Give the text the tokens that it lacks; those that follow the end of a stop string are dropped."""
        if self.text is None:
            return
        end = len(self.token_ids) - self.num_tokens_hidden
        if self.num_tokens_decoded < end:
            self.num_tokens_decoded += self.text.add(self.token_ids[self.num_tokens_decoded : end])
            if self.text.stop_string is not None:
                del self.token_ids[self.num_tokens_decoded :]
                self.num_tokens_hidden = 0

    def _ends_with_hidden_token(self, output: EngineCoreOutput) -> bool:
        """Say whether the last token only ended the sequence; at the end of a grammar it is text."""
        if self.request.sampling_params.include_stop_str_in_output or not output.new_token_ids:
            return False
        return output.new_token_ids[-1] in (self.request.eos_token_id, output.stop_reason)

    def _record_events(self, output: EngineCoreOutput) -> None:
        metrics = self.metrics
        for event in output.events:
            if event.type is EngineCoreEventType.QUEUED:
                metrics.queued_ts = metrics.queued_ts or event.timestamp
            elif event.type is EngineCoreEventType.PREEMPTED:
                metrics.num_preemptions += 1
            elif not metrics.scheduled_ts:  # a return after a preemption is not the first time
                metrics.scheduled_ts = event.timestamp

    def _record_tokens(self, num_tokens: int, timestamp: float) -> None:
        metrics = self.metrics
        if not metrics.num_generation_tokens:
            metrics.first_token_ts = timestamp
            metrics.first_token_latency = time.time() - metrics.arrival_time
        metrics.last_token_ts = timestamp
        metrics.num_generation_tokens += num_tokens


def new_request_state(
    request: EngineCoreRequest,
    external_id: str,
    prompt: str | None,
    index: int,
    parent: ParentRequest | None,
    tokenizer: Tokenizer | None,
    texts: TokenTexts | None,
) -> RequestState:
    """Return the state of a request that is about to enter the core."""
    params = request.sampling_params
    if not params.detokenize or tokenizer is None:
        tokenizer = texts = None
    return RequestState(
        request=request,
        external_id=external_id,
        prompt=prompt,
        index=index,
        parent=parent,
        text=_new_text_state(request, tokenizer) if tokenizer is not None else None,
        logprobs=_new_logprobs_state(request, texts) if params.num_logprobs is not None else None,
        texts=texts,
        metrics=RequestMetrics(arrival_time=request.arrival_time),
        output_kind=params.output_kind,
        has_stop_strings=tokenizer is not None and bool(params.stop_strings),
    )


def _new_text_state(request: EngineCoreRequest, tokenizer: Tokenizer) -> TextState:
    params = request.sampling_params
    # spaces_between_special_tokens has nothing to do: no supported decoder puts spaces between tokens
    detokenizer = tokenizer.detokenizer(
        request.prompt_token_ids,
        skip_special_tokens=params.skip_special_tokens,
        shown_tokens=params.shown_special_tokens.union(params.stop_strings),  # one that is a special token must be seen
    )
    return TextState(detokenizer, params.stop_strings, params.include_stop_str_in_output, params.min_tokens)


def _new_logprobs_state(request: EngineCoreRequest, texts: TokenTexts | None) -> LogprobsState:
    candidates_are_top = request.sampling_params.logprob_token_ids is None
    return LogprobsState(texts, request.prompt_token_ids, candidates_are_top)
