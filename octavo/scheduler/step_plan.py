"""The step that is being put together: what is left of its budgets, and who got what."""

from __future__ import annotations

from octavo.config.configs import SchedulerConfig
from octavo.scheduler.request import Request
from octavo.types.step import BlockIds, NewRequestData, SchedulerOutput


class StepPlan:
    """Budgets of one step and the work given out so far. Work of a request that is preempted can be taken back.

    num_partial_prefills: running prompts that this step does not finish; num_long_partial_prefills: the long ones
    num_promised_blocks: what those prompts still need, kept from newcomers
    """

    def __init__(self, config: SchedulerConfig, num_running: int, num_waiting: int) -> None:
        """num_running, num_waiting: requests; each of several batches in flight gets an even share of them"""
        num_batches = config.num_batches_in_flight
        self._is_pipelined = num_batches > 1
        self._max_running = -(-num_running // num_batches)
        self._max_requests = -(-min(num_running + num_waiting, config.max_num_seqs) // num_batches)
        self.tokens_left = config.max_num_batched_tokens
        self.num_partial_prefills = 0
        self.num_long_partial_prefills = 0
        self.num_promised_blocks = 0
        self.output = SchedulerOutput()
        self.requests: dict[str, Request] = {}  # in batch order
        self._new_blocks: dict[str, BlockIds] = {}

    @property
    def has_room_for_running(self) -> bool:
        """Whether a further request that runs may get tokens."""
        return self.tokens_left > 0 and len(self.requests) < self._max_running

    @property
    def has_room(self) -> bool:
        """Whether a further request may get tokens."""
        return self.tokens_left > 0 and len(self.requests) < self._max_requests

    def schedule(self, request: Request, num_new_tokens: int, block_ids: BlockIds) -> None:
        """Give a request its tokens, drafts among them. block_ids: all of a newcomer's, only new ones otherwise."""
        request_id = request.request_id
        self.tokens_left -= num_new_tokens
        self.requests[request_id] = request
        self.output.num_scheduled_tokens[request_id] = num_new_tokens
        self._new_blocks[request_id] = block_ids

    def take_back(self, request: Request) -> None:
        """Undo what `schedule` gave to a request, if anything."""
        if self.requests.pop(request.request_id, None) is not None:
            self.tokens_left += self.output.num_scheduled_tokens.pop(request.request_id)
            del self._new_blocks[request.request_id]

    def settle(self, request: Request) -> int:
        """Move a request's computed tokens and drafts into the step; return how many tokens were computed before."""
        before = request.num_computed_tokens
        request.num_computed_tokens = after = before + self.output.num_scheduled_tokens[request.request_id]
        request.num_in_flight += 1
        if request.spec_token_ids:
            num_drafts = after - len(request.all_token_ids)
            if num_drafts > 0:
                self.output.scheduled_spec_tokens[request.request_id] = request.spec_token_ids[:num_drafts]
            request.spec_token_ids = []
        if request.is_structured and after >= len(request.all_token_ids):
            self.output.structured_request_ids.append(request.request_id)
        return before

    def settle_running(self, request: Request) -> None:
        """Settle a request that has a row on the worker and append its column."""
        columns = self.output.scheduled_cached_requests
        columns.request_ids.append(request.request_id)
        before = self.settle(request)
        columns.num_computed_tokens.append(before)
        if self._is_pipelined:  # the first stages do not sample
            after = request.num_computed_tokens
            is_sampled = after > request.num_prompt_tokens
            columns.new_token_ids.append(request.all_token_ids[before:after] if is_sampled else [])
        columns.new_block_ids.append(self._new_blocks[request.request_id] or None)

    def settle_newcomer(self, request: Request) -> None:
        """Settle a request that has no row: it is sent whole."""
        self.output.scheduled_new_requests.append(
            NewRequestData(
                request_id=request.request_id,
                token_ids=request.all_token_ids,
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                seed=request.seed,
                eos_token_id=request.eos_token_id,
                stop_token_ids=request.stop_token_ids,
                block_ids=self._new_blocks[request.request_id],
                num_computed_tokens=self.settle(request),
                pooling_params=request.pooling_params,
                second_text_start=request.second_text_start,
                adapter=None if request.adapter is None else request.adapter.identity,
            )
        )

    def finish(self) -> SchedulerOutput:
        self.output.total_num_scheduled_tokens = sum(self.output.num_scheduled_tokens.values())
        return self.output
