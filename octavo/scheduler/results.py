"""Booking a step's results: new tokens, rejected drafts, ends, and the messages to the front end."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.scheduler.hooks import GrammarHook
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.stop import check_stop
from octavo.types.grammar import GrammarProgress
from octavo.types.messages import EngineCoreEvent, EngineCoreOutput, EngineCoreOutputs, PackedArray, PackedLogprobs
from octavo.types.request import GRAMMAR_GAVE_UP
from octavo.types.stats import SpeculationStats
from octavo.types.step import ModelRunnerOutput, SchedulerOutput

Ended = list[tuple[Request, RequestStatus]]

_NO_EVENTS: list[EngineCoreEvent] = []  # shared and never changed: a list for each would be a third of a step's objects


class StepResults:
    """Turns runner outputs into request state and messages. Frees nothing: it returns who has ended."""

    def __init__(self, grammar: GrammarHook | None) -> None:
        self._grammar = grammar
        self._outputs: list[EngineCoreOutput] = []
        self._held: list[tuple[Request, SchedulerOutput, ModelRunnerOutput]] = []  # until their grammars take a token
        self._speculation: SpeculationStats | None = None

    def apply(
        self, requests: Sequence[Request], scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput
    ) -> Ended:
        """Book the step for its requests; return those that end, with their final status."""
        ended: Ended = []
        held, self._held = self._held, []
        for request, its_step, its_output in held:
            self._book(request, its_step, its_output, ended)
        for request in requests:
            self._book(request, scheduler_output, runner_output, ended)
        return ended

    def _book(self, request: Request, step: SchedulerOutput, runner_output: ModelRunnerOutput, ended: Ended) -> None:
        request.num_in_flight -= 1
        if request.is_finished:
            return  # ended between schedule and now
        request_id = request.request_id
        token_ids = runner_output.sampled_token_ids.get(request_id)
        if runner_output.failures and request_id in runner_output.failures:
            ended.append(self._fail(request, self._grammar_error(request) or runner_output.failures[request_id]))
            return
        if runner_output.pooled and request_id in runner_output.pooled:
            self.add_output(request, [], RequestStatus.FINISHED_STOPPED, pooled=runner_output.pooled[request_id])
            ended.append((request, RequestStatus.FINISHED_STOPPED))
            return
        if not token_ids:
            if request.num_in_flight == 0 and request.num_computed_tokens >= len(request.all_token_ids):
                ended.append(self._fail(request, "the model runner returned no token for a finished prompt"))
            elif runner_output.prompt_logprobs and request_id in runner_output.prompt_logprobs:
                self._emit(request, [], None, runner_output)
            return
        if request.is_structured and self._grammar is not None:
            if not self._grammar.begin_accept(request, token_ids[0]):
                request.num_in_flight += 1  # for all others its token is still to come
                self._held.append((request, step, runner_output))
                return
            new_token_ids, status = _append_structured(request, token_ids, self._grammar)
        else:
            new_token_ids, status = _append(request, token_ids)
        if request_id in step.scheduled_spec_tokens:
            self._settle_drafts(request, len(step.scheduled_spec_tokens[request_id]), len(token_ids) - 1)
        self._emit(request, new_token_ids, status, runner_output)
        if status is not None:
            ended.append((request, status))
        elif runner_output.draft_token_ids:
            self._take_proposals(request, runner_output.draft_token_ids.get(request_id))

    def add_output(
        self,
        request: Request,
        new_token_ids: list[int],
        status: RequestStatus | None = None,
        logprobs: PackedLogprobs | None = None,
        prompt_logprobs: PackedLogprobs | None = None,
        pooled: PackedArray | None = None,
    ) -> None:
        """Append a message about a request. status: what the step ends it with; None: as it is."""
        self._outputs.append(
            EngineCoreOutput(
                request.request_id,
                new_token_ids,
                logprobs,
                prompt_logprobs,
                (status or request.status).finish_reason,
                request.stop_reason,
                request.num_cached_tokens or 0,
                request.take_events() if request.events else _NO_EVENTS,
                pooled,
            )
        )

    def take_outputs(self, timestamp: float) -> EngineCoreOutputs:
        """Return the messages since the last call."""
        outputs, self._outputs = self._outputs, []
        return EngineCoreOutputs(outputs, timestamp=timestamp)

    def take_speculation_stats(self) -> SpeculationStats | None:
        """Return what became of drafts since the last call; None without any."""
        stats, self._speculation = self._speculation, None
        return stats

    def _emit(
        self, request: Request, token_ids: list[int], status: RequestStatus | None, runner_output: ModelRunnerOutput
    ) -> None:
        logprobs = runner_output.logprobs.get(request.request_id) if runner_output.logprobs else None
        if logprobs is not None and logprobs.num_positions > len(token_ids):
            logprobs = first_positions(logprobs, len(token_ids))
        prompt_logprobs = None
        if runner_output.prompt_logprobs and not request.prompt_logprobs_sent:
            prompt_logprobs = runner_output.prompt_logprobs.get(request.request_id)
            request.prompt_logprobs_sent = prompt_logprobs is not None
        self.add_output(request, token_ids, status, logprobs, prompt_logprobs)

    def _grammar_error(self, request: Request) -> str | None:
        reason = self._grammar.error(request) if request.is_structured and self._grammar is not None else None
        return None if reason is None else GRAMMAR_GAVE_UP + reason

    def _fail(self, request: Request, error: str) -> tuple[Request, RequestStatus]:
        request.stop_reason = error
        self.add_output(request, [], RequestStatus.FINISHED_ERROR)
        return request, RequestStatus.FINISHED_ERROR

    def _settle_drafts(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Count a request's drafts and take back those that were rejected; a preemption has taken back everything."""
        if self._speculation is None:
            self._speculation = SpeculationStats()
        self._speculation.record(num_drafts, num_accepted)
        if request.status is RequestStatus.RUNNING:
            request.num_computed_tokens -= num_drafts - num_accepted

    def _take_proposals(self, request: Request, token_ids: list[int] | None) -> None:
        """Keep drafts for the next step; a preempted request has no use for them."""
        if not token_ids or request.status is not RequestStatus.RUNNING:
            return
        if request.is_structured and self._grammar is not None:
            token_ids = self._grammar.valid_drafts(request, token_ids)
        request.spec_token_ids = list(token_ids)


def first_positions(logprobs: PackedLogprobs, count: int) -> PackedLogprobs:
    """Return the first `count` positions (a stop cut the tokens after them)."""
    num_bytes = 4 * count * logprobs.num_candidates
    return PackedLogprobs(
        num_positions=count,
        num_candidates=logprobs.num_candidates,
        token_ids=logprobs.token_ids[:num_bytes],
        logprobs=logprobs.logprobs[:num_bytes],
        ranks=logprobs.ranks[: 4 * count],
    )


def _append(request: Request, token_ids: list[int]) -> tuple[list[int], RequestStatus | None]:
    """Append new tokens up to the first at which the request ends; return those, and the final status."""
    for count, token_id in enumerate(token_ids, 1):
        request.all_token_ids.append(token_id)
        status = check_stop(request)
        if status is not None:
            return token_ids[:count], status
    return token_ids, None


def _append_structured(
    request: Request, token_ids: list[int], grammar: GrammarHook
) -> tuple[list[int], RequestStatus | None]:
    """Do the same for a request with a grammar, which ends with it: then it is whole, whatever the limits say."""
    for count, token_id in enumerate(token_ids, 1):
        request.all_token_ids.append(token_id)
        status = check_stop(request)
        if status is RequestStatus.FINISHED_STOPPED:
            return token_ids[:count], status
        progress = grammar.accept(request, token_id)
        if progress is GrammarProgress.COMPLETE:
            request.stop_reason = None
            return token_ids[:count], RequestStatus.FINISHED_STOPPED
        if progress is GrammarProgress.REJECTED:
            request.all_token_ids.pop()
            request.stop_reason = f"{GRAMMAR_GAVE_UP}token {token_id}: {grammar.error(request)}"
            return token_ids[: count - 1], RequestStatus.FINISHED_ERROR
        if status is not None:
            return token_ids[:count], status
    return token_ids, None
