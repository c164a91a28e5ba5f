"""Admission: may the request at the head of the queue join this step, and with how many tokens?"""

from __future__ import annotations

import enum

from octavo.config.configs import SchedulerConfig
from octavo.kv_cache.manager import KVCacheManager, PrefixHit
from octavo.scheduler.hooks import GrammarHook
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.step_plan import StepPlan

# Requests passed over in one step because of the partial-prefill limits: each costs a prefix lookup.
MAX_PASSED_OVER = 32


class Verdict(enum.Enum):
    """What became of a waiting request in this step."""

    ADMITTED = enum.auto()
    NOT_READY = enum.auto()  # waits for something outside; others may go first
    COMPILING = enum.auto()  # waits for its grammar, whose arrival the hook will tell
    PASSED_OVER = enum.auto()  # too many prompts are partly computed; one that needs fewer tokens may go first
    BLOCKED = enum.auto()  # no room: nobody goes first, or large requests would wait for ever


class Admission:
    """Decides about one waiting request at a time and, if it is admitted, gives it its slots."""

    def __init__(
        self, config: SchedulerConfig, kv_cache: KVCacheManager, num_groups: int, grammar: GrammarHook | None
    ) -> None:
        self._config = config
        self._kv_cache = kv_cache
        self._num_groups = num_groups
        self._grammar = grammar

    def try_admit(self, request: Request, plan: StepPlan, num_running: int, others_want: bool) -> Verdict:
        """Schedule the request if it can run now. Raises InvalidRequestError if its grammar cannot be compiled."""
        obstacle = self._obstacle(request)
        if obstacle is not None:
            return obstacle
        hit = self._kv_cache.get_computed_blocks(request)
        remaining = request.num_tokens - hit.num_tokens
        num_new = self._num_new_tokens(remaining, plan, others_want)
        if num_new < remaining:
            if not self._config.enable_chunked_prefill:
                return Verdict.BLOCKED
            if not self._may_be_partial(remaining, plan):
                return Verdict.PASSED_OVER
        return self._give_slots(request, hit, num_new, plan, num_running)

    def _obstacle(self, request: Request) -> Verdict | None:
        # A preempted request's older step is still out: its token must arrive before the request is sent again.
        if request.num_in_flight:
            return Verdict.NOT_READY
        if not request.is_structured or self._grammar is None:
            return None
        if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            if not self._grammar.is_ready(request):
                return Verdict.COMPILING
            request.status = RequestStatus.WAITING
        return None if self._grammar.may_run(request) else Verdict.NOT_READY

    def _num_new_tokens(self, remaining: int, plan: StepPlan, others_want: bool) -> int:
        threshold = self._config.long_prefill_token_threshold
        if 0 < threshold < remaining and others_want and self._config.enable_chunked_prefill:
            return min(threshold, plan.tokens_left)
        return min(remaining, plan.tokens_left)

    def _may_be_partial(self, remaining: int, plan: StepPlan) -> bool:
        if plan.num_partial_prefills >= self._config.max_num_partial_prefills:
            return False
        is_long = 0 < self._config.long_prefill_token_threshold < remaining
        return not is_long or plan.num_long_partial_prefills < self._config.max_long_partial_prefills

    def _give_slots(self, request: Request, hit: PrefixHit, num_new: int, plan: StepPlan, num_running: int) -> Verdict:
        was_preempted = request.status is RequestStatus.PREEMPTED
        num_reserved = self._kv_cache.watermark_blocks if num_running else 0
        if was_preempted or self._config.reserve_full_sequence:
            num_reserved += plan.num_promised_blocks
            # Each running request may soon want a block more: without this room the request would be preempted again
            # at once, having computed everything for nothing.
            headroom = num_running * self._num_groups if was_preempted else 0
            if not self._kv_cache.fits_whole(request, hit, num_reserved + headroom):
                return Verdict.BLOCKED
        block_ids = self._kv_cache.start(request, hit, num_new, self._config.num_lookahead_tokens, num_reserved)
        if block_ids is None:
            return Verdict.BLOCKED
        request.num_computed_tokens = hit.num_tokens
        if not was_preempted:
            self._kv_cache.record_hit(request, hit)
        plan.schedule(request, num_new, block_ids)
        return Verdict.ADMITTED
