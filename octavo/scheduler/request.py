"""The state of one request inside the scheduler."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from octavo.kv_cache.hashing import root_hash
from octavo.types.adapters import Adapter
from octavo.types.grammar import GrammarSpec
from octavo.types.messages import EngineCoreEvent, EngineCoreEventType
from octavo.types.pooling import PoolingParams
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.sampling_params import SamplingParams


class RequestStatus(enum.IntEnum):
    """Where a request is in its life; everything above PREEMPTED is an end."""

    WAITING = 0
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6
    FINISHED_ERROR = 7
    FINISHED_REPETITION = 8

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        return FINISH_REASONS[self]


FINISH_REASONS = (  # by status
    *(None, None, None, None),
    *(FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR, FinishReason.REPETITION),
)


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate.

        all_token_ids:  [0 .. num_computed_tokens) in the cache | [.. num_tokens) owed | spec_token_ids guessed

    num_computed_tokens counts what is scheduled, at once; rejected drafts are taken back when their step returns.

    all_token_ids: prompt and output, one growing list that others may read and never keep
    max_total_tokens: the sequence ends with finish reason "length" at this many tokens
    num_cached_tokens: prompt tokens that the prefix cache gave at first admission; None before it
    num_in_flight: steps scheduled for it that have not returned
    stop_reason: see EngineCoreOutput
    grammar, reasoning_end_token_ids, reasoning_start_token_ids, call_start_token_ids, pooling_params and
    second_text_start: see EngineCoreRequest
    """

    request_id: str
    sampling_params: SamplingParams
    all_token_ids: list[int]
    num_prompt_tokens: int
    arrival_time: float
    priority: int
    seed: int
    eos_token_id: int | None
    stop_token_ids: list[int]
    root_hash: bytes
    status: RequestStatus = RequestStatus.WAITING
    max_total_tokens: int = 0  # set by the scheduler, which knows the limits
    num_computed_tokens: int = 0
    spec_token_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # grown by the KV cache
    num_cached_tokens: int | None = None
    num_in_flight: int = 0
    prompt_logprobs_sent: bool = False
    stop_reason: int | str | None = None
    events: list[EngineCoreEvent] = field(default_factory=list)
    grammar: GrammarSpec | None = None
    reasoning_end_token_ids: list[int] | None = None
    reasoning_start_token_ids: list[int] | None = None
    call_start_token_ids: list[list[int]] = field(default_factory=list)
    pooling_params: PoolingParams | None = None
    second_text_start: int | None = None
    adapter: Adapter | None = None
    num_overtaken: int = 0  # by requests whose adapters had room
    queue_number: int = 0  # of its place among the waiting; given by their queue

    @classmethod
    def from_core_request(cls, core_request: EngineCoreRequest) -> Request:
        """Build the state of a request that enters, or, with output_token_ids, goes on after an engine's death."""
        params, adapter = core_request.sampling_params, core_request.adapter
        request = cls(
            request_id=core_request.request_id,
            sampling_params=params,
            all_token_ids=[*core_request.prompt_token_ids, *core_request.output_token_ids],
            num_prompt_tokens=len(core_request.prompt_token_ids),
            arrival_time=core_request.arrival_time,
            priority=core_request.priority,
            seed=core_request.seed,
            eos_token_id=core_request.eos_token_id,
            stop_token_ids=core_request.stop_token_ids,
            root_hash=root_hash(core_request.cache_salt, None if adapter is None else adapter.identity),
            grammar=core_request.grammar,
            reasoning_end_token_ids=core_request.reasoning_end_token_ids,
            reasoning_start_token_ids=core_request.reasoning_start_token_ids,
            call_start_token_ids=core_request.call_start_token_ids,
            pooling_params=core_request.pooling_params,
            second_text_start=core_request.second_text_start,
            adapter=adapter,
        )
        if request.is_structured:
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        return request

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Prompt logprobs need every prompt position computed, whatever the user says."""
        params = self.sampling_params
        return params.prompt_logprobs is not None or bool(params.skip_reading_prefix_cache)

    @property
    def is_structured(self) -> bool:
        return self.grammar is not None

    @property
    def awaits_token(self) -> bool:
        """Whether all that is known is computed or about to be: the next token comes from a step in flight."""
        return self.num_in_flight > 0 and self.num_computed_tokens >= len(self.all_token_ids)

    @property
    def may_run_ahead(self) -> bool:
        """Whether the token that it awaits can be scheduled before it is known: where it is sampled, it is known.

        Surely one comes, nothing outside must see it first, and it will not reach the limit. Should it end the request
        otherwise, one more was computed in vain.
        """
        return (
            self.num_in_flight > 0
            and self.num_computed_tokens == len(self.all_token_ids) < self.max_total_tokens - 1
            and self.grammar is None
            and self.pooling_params is None
        )

    @property
    def is_finished(self) -> bool:
        return self.status > RequestStatus.PREEMPTED

    def record(self, event: EngineCoreEventType, timestamp: float) -> None:
        self.events.append(EngineCoreEvent(event, timestamp))

    def take_events(self) -> list[EngineCoreEvent]:
        events, self.events = self.events, []
        return events
