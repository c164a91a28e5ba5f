"""The scheduler: each step it decides who computes how many tokens, and afterwards books what came out.

There is no prefill and no decode phase. A request owes tokens (known or drafted, but not computed); each step pays
debts within one token budget: running requests first, in order, then waiting ones. When the KV cache is full, a
running request is preempted: it loses its blocks, waits at the head of the queue, and is computed again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, islice

from octavo.config.configs import CacheConfig, SchedulerConfig
from octavo.errors import InvalidRequestError
from octavo.kv_cache.manager import KVCacheManager
from octavo.kv_cache.planning import max_request_tokens
from octavo.scheduler.adapter_limit import AdapterCounts, AdapterLimit
from octavo.scheduler.admission import MAX_PASSED_OVER, Admission, Verdict
from octavo.scheduler.checks import check_can_run, check_config
from octavo.scheduler.hooks import GrammarHook
from octavo.scheduler.queue import WaitingQueue, priority_key
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.results import StepResults
from octavo.scheduler.step_plan import StepPlan
from octavo.types.kv_events import KVCacheEvent
from octavo.types.kv_spec import KVCacheConfig
from octavo.types.messages import EngineCoreEventType, EngineCoreOutputs
from octavo.types.stats import EngineSnapshot, RequestProgress, SchedulerStats
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput


class Scheduler:
    """Owns all live requests and the KV cache's bookkeeping. Not thread-safe.

    `schedule` may be called again before the results of earlier steps are in (several batches in flight);
    `update_from_output` takes the steps in the order in which they were scheduled.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        kv_cache_config: KVCacheConfig,
        *,
        grammar: GrammarHook | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        max_step_tokens = scheduler_config.max_num_batched_tokens + scheduler_config.num_lookahead_tokens
        # No sequence outgrows the cache: with it to itself, every request can go on.
        self.max_model_len = min(scheduler_config.max_model_len, max_request_tokens(kv_cache_config, max_step_tokens))
        self.config = replace(scheduler_config, max_model_len=self.max_model_len)
        check_config(self.config)
        self.kv_cache = KVCacheManager(kv_cache_config, cache_config, max_step_tokens, self.max_model_len)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = WaitingQueue(scheduler_config.policy)
        self._adapters = AdapterCounts()
        self.adapters_in_use = self._adapters.identities
        self._grammar = grammar
        self._clock = clock
        self._admission = Admission(self.config, self.kv_cache, len(kv_cache_config.groups), grammar)
        self._results = StepResults(grammar)
        self._in_flight: deque[tuple[SchedulerOutput, list[Request]]] = deque()
        self._rows_to_give_up: list[str] = []  # finished since the last step
        self._preempted_between_steps: list[str] = []
        self._refused: list[Request] = []  # ended while waiting; the client does not know yet
        self._num_preemptions = 0

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequestError if it can never run."""
        if request.request_id in self.requests:
            raise InvalidRequestError(f"request id {request.request_id} is in use; ids of live requests are unique")
        check_can_run(request, self.config, has_grammars=self._grammar is not None)
        max_tokens = request.sampling_params.max_tokens
        request.max_total_tokens = self.max_model_len
        if max_tokens is not None:
            request.max_total_tokens = min(request.num_prompt_tokens + max_tokens, self.max_model_len)
        request.record(EngineCoreEventType.QUEUED, self._clock())
        self.requests[request.request_id] = request
        self.waiting.add(request)
        self._adapters.came(request)

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> None:
        """End these requests now, with no output; unknown ids are passed over (they have ended already)."""
        assert status.is_finished, f"{status.name} is not an end"
        requests = [
            self.requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self.requests
        ]
        self._end([(request, status) for request in requests])

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests) or bool(self._refused)

    def awaits_results(self) -> bool:
        """Say whether the next step must not be scheduled before one that is in flight returns: it would be empty.

        With asynchronous scheduling also if requests with grammars, which cannot run ahead, would miss it.
        """
        ahead = self.config.async_scheduling
        if ahead and any(step.structured_request_ids for step, _ in self._in_flight):
            return True
        return not self.waiting and all(
            request.awaits_token and not (ahead and request.may_run_ahead) for request in self.running
        )

    # -- one step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step; computed-token counts advance at once."""
        if self._grammar is not None:
            self.waiting.bring_back(self._grammar.take_ready())
        plan = StepPlan(self.config, len(self.running), self.waiting.num_ready)
        self._schedule_running(plan)
        if not plan.output.preempted_request_ids:
            self._schedule_waiting(plan)
        output = plan.finish()
        if output.structured_request_ids and self._grammar is not None:
            self._grammar.start_masks(output.structured_request_ids, output.scheduled_spec_tokens)
        output.preempted_request_ids += self._preempted_between_steps
        self._preempted_between_steps = []
        output.finished_request_ids, self._rows_to_give_up = self._rows_to_give_up, []
        self._in_flight.append((output, list(plan.requests.values())))
        return output

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Return the masks of the step's structured requests; None if there are none."""
        request_ids = [i for i in scheduler_output.structured_request_ids if i in self.requests]
        if not request_ids or self._grammar is None:
            return None
        masks = self._grammar.bitmask(request_ids, scheduler_output.scheduled_spec_tokens)
        for request_id in () if masks is None else masks.late_request_ids:
            request = self.requests[request_id]  # its last token is computed again, when its mask is there
            request.num_computed_tokens = min(request.num_computed_tokens, len(request.all_token_ids) - 1)
        return masks

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput
    ) -> EngineCoreOutputs:
        """Book a step's results; return what is new. Requests that ended meanwhile are passed over."""
        expected, requests = self._in_flight.popleft()
        assert expected is scheduler_output, "steps must be updated in the order in which they were scheduled"
        if runner_output.failures:
            for request in requests:  # also of requests that were aborted or preempted since
                if request.request_id in runner_output.failures:
                    self.kv_cache.forget(request)
        ended = self._results.apply(requests, scheduler_output, runner_output)
        if ended:
            self._end(ended)
        for request in self._refused:
            self._results.add_output(request, [])
        self._refused.clear()
        return self._results.take_outputs(self._clock())

    def discard(self, scheduler_output: SchedulerOutput) -> None:
        """Drop a step in flight that followed on one that failed: what it read may never have been computed.

        Its requests lose everything that is computed of them, and run again.
        """
        expected, requests = self._in_flight.popleft()
        assert expected is scheduler_output, "steps must be dropped in the order in which they were scheduled"
        for request in reversed(requests):  # each goes to the queue's head
            request.num_in_flight -= 1
            self.kv_cache.forget(request)
            if request.status is RequestStatus.RUNNING:
                self._preempt(self.running.index(request), None)

    # -- running requests ----------------------------------------------------------------------------------------------

    def _schedule_running(self, plan: StepPlan) -> None:
        others_want = len(self.running) + self.waiting.num_ready > 1
        index = 0
        while index < len(self.running) and plan.has_room_for_running:
            request = self.running[index]
            num_new = self._num_tokens_owed(request, plan, others_want)
            if num_new <= 0:
                index += 1  # not a break: later requests may still run
                continue
            block_ids = self.kv_cache.allocate_slots(request, num_new, self.config.num_lookahead_tokens)
            while block_ids is None:
                victim_index = self._choose_victim()
                victim = self.running[victim_index]
                self._preempt(victim_index, plan)
                if victim is request:
                    break
                if victim_index < index:
                    index -= 1
                block_ids = self.kv_cache.allocate_slots(request, num_new, self.config.num_lookahead_tokens)
            if block_ids is None:
                continue  # it gave way itself; by priority there may be others behind it, and there is room now
            plan.schedule(request, num_new, block_ids)
            index += 1
        for request in plan.requests.values():
            plan.settle_running(request)
            self.kv_cache.cache_blocks(request)
            self._count_if_partial(request, plan)

    def _num_tokens_owed(self, request: Request, plan: StepPlan, others_want: bool) -> int:
        computed = request.num_computed_tokens
        num_new = len(request.all_token_ids) + len(request.spec_token_ids) - computed
        if num_new == 0 and self.config.async_scheduling and request.may_run_ahead:
            num_new = 1
        if num_new > 1:
            # a token at the last position would never be read: the sequence ends there
            num_new = min(num_new, plan.tokens_left, self.max_model_len - 1 - computed)
            threshold = self.config.long_prefill_token_threshold
            if 0 < threshold < num_new and others_want:
                num_new = threshold
        if num_new and request.is_structured and self._grammar is not None and not self._grammar.may_run(request):
            return 0
        return num_new

    def _count_if_partial(self, request: Request, plan: StepPlan) -> None:
        remaining = len(request.all_token_ids) - request.num_computed_tokens
        if remaining > 0:
            plan.num_partial_prefills += 1
            plan.num_promised_blocks += self.kv_cache.num_blocks_to_finish(request)
            if 0 < self.config.long_prefill_token_threshold < remaining:
                plan.num_long_partial_prefills += 1

    def _choose_victim(self) -> int:
        """Return the index of the running request that gives way: the last come, or the worst by priority."""
        if self.config.policy == "priority":
            return max(range(len(self.running)), key=lambda index: priority_key(self.running[index]))
        return len(self.running) - 1

    def _preempt(self, index: int, plan: StepPlan | None) -> None:
        """Take a running request's blocks and put it back at the head of the queue. plan: the step under way."""
        request = self.running.pop(index)
        if plan is not None:
            plan.take_back(request)
        self.kv_cache.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        request.record(EngineCoreEventType.PREEMPTED, self._clock())
        self.waiting.add_preempted(request)
        self._num_preemptions += 1
        preempted = self._preempted_between_steps if plan is None else plan.output.preempted_request_ids
        preempted.append(request.request_id)

    # -- waiting requests ----------------------------------------------------------------------------------------------

    def _schedule_waiting(self, plan: StepPlan) -> None:
        passed: list[Request] = []  # keep their places
        num_passed_over = 0
        adapters = AdapterLimit(self.config.max_loras, self.running if self.config.max_loras else ())
        while plan.has_room and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            if request is None:
                break
            others_want = len(self.running) + self.waiting.num_ready + len(passed) > 1
            try:
                verdict = Verdict.PASSED_OVER
                if adapters.may_join(request):
                    verdict = self._admission.try_admit(request, plan, len(self.running), others_want)
            except InvalidRequestError as error:
                request.stop_reason = str(error)
                self._end([(request, RequestStatus.FINISHED_ERROR)])
                self._refused.append(request)
                continue
            if verdict is Verdict.BLOCKED:
                break
            self.waiting.pop()
            if verdict is Verdict.ADMITTED:
                self._settle_newcomer(request, plan)
                adapters.joined(request)
                continue
            if verdict is Verdict.COMPILING:
                self.waiting.set_aside(request)
                continue
            passed.append(request)
            if verdict is Verdict.PASSED_OVER:
                num_passed_over += 1
                if num_passed_over == MAX_PASSED_OVER:
                    break
        self.waiting.put_back(passed)

    def _settle_newcomer(self, request: Request, plan: StepPlan) -> None:
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        request.status = RequestStatus.RUNNING
        request.record(EngineCoreEventType.SCHEDULED, self._clock())
        self.running.append(request)
        plan.settle_newcomer(request)
        self.kv_cache.cache_blocks(request)  # at once: the next in the queue may share them within this step
        self._count_if_partial(request, plan)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _end(self, ended: list[tuple[Request, RequestStatus]]) -> None:
        """Free all that these requests hold."""
        waiting = [request for request, _ in ended if request.status is not RequestStatus.RUNNING]
        if waiting:
            self.waiting.remove(waiting)
        for request, status in ended:
            if request.status is RequestStatus.RUNNING:
                self._rows_to_give_up.append(request.request_id)
            request.status = status
            self.kv_cache.free(request)
            if self._grammar is not None and request.is_structured:
                self._grammar.release(request)
            del self.requests[request.request_id]
            self._adapters.went(request)
        if len(waiting) < len(ended):
            self.running = [request for request in self.running if not request.is_finished]

    # -- services ------------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache; False if blocks are in use. reset_running_requests: preempt their users first."""
        if reset_running_requests:
            while self.running:
                self._preempt(len(self.running) - 1, None)
        return self.kv_cache.reset_prefix_cache()

    def make_stats(self) -> SchedulerStats:
        """Return the state now, with the counts of prefix cache and drafts since the last call."""
        running_adapters, waiting_adapters = self._adapters.names(self.running)
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.kv_cache.usage,
            num_preemptions=self._num_preemptions,
            prefix_cache=self.kv_cache.take_prefix_cache_stats(),
            speculation=self._results.take_speculation_stats(),
            running_adapters=running_adapters,
            waiting_adapters=waiting_adapters,
        )

    def make_snapshot(self, max_requests: int) -> EngineSnapshot:
        """Return what is here now: every block's state, and the progress of up to max_requests requests."""
        shown = islice(chain(self.running, self.waiting), max_requests)
        running = {request.request_id for request in self.running}
        return EngineSnapshot(
            block_states=self.kv_cache.block_states(),
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            requests=[
                RequestProgress(
                    request.request_id,
                    request.request_id in running,
                    request.num_prompt_tokens,
                    request.num_computed_tokens,
                    request.num_output_tokens,
                    request.max_total_tokens - request.num_prompt_tokens,
                )
                for request in shown
            ],
        )

    def take_kv_events(self) -> list[KVCacheEvent]:
        """Return the KV cache events since the last call; empty unless they are enabled."""
        return self.kv_cache.take_events()
