"""Statistics that cross from the engine core to the front end, and per-request timing."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec


class PrefixCacheStats(msgspec.Struct, array_like=True):
    """Prefix-cache use since the last report, in tokens; re-prefills after a preemption are not counted."""

    queries: int = 0
    hits: int = 0


class SpeculationStats(msgspec.Struct, array_like=True):
    """Guesses since the last report. num_accepted_per_position[i]: times that a guess i places ahead was right."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_per_position: list[int] = []

    def record(self, num_draft_tokens: int, num_accepted: int) -> None:
        """Count one request's guesses of a step."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        per_position = self.num_accepted_per_position
        per_position += [0] * (num_draft_tokens - len(per_position))
        for position in range(num_accepted):
            per_position[position] += 1


class SchedulerStats(msgspec.Struct, array_like=True):
    """The scheduler's state after a step. kv_cache_usage: share of blocks in use, 0 to 1.

    num_step_tokens: that the step computed; 0 in a report without a step
    running_adapters, waiting_adapters: names of the LoRA adapters of running and of waiting requests, sorted
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0  # total since start
    prefix_cache: PrefixCacheStats = msgspec.field(default_factory=PrefixCacheStats)
    speculation: SpeculationStats | None = None
    num_step_tokens: int = 0
    running_adapters: list[str] = []
    waiting_adapters: list[str] = []


class BlockState(enum.IntEnum):
    """What a KV cache block is at one moment."""

    FREE = 0
    CACHED = 1  # free, but a prompt that begins like its content may take it over
    USED = 2
    SHARED = 3  # used by several requests
    NULL = 4  # never handed out


class RequestProgress(msgspec.Struct, array_like=True):
    """How far a live request is, in tokens. max_output_tokens: what it may generate at most"""

    request_id: str
    is_running: bool
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_output_tokens: int


class EngineSnapshot(msgspec.Struct, array_like=True):
    """What an engine core holds at one moment. block_states: one byte, a BlockState, per KV cache block

    requests: running ones first, at most as many as asked for
    """

    block_states: bytes
    num_running: int
    num_waiting: int
    requests: list[RequestProgress]


@dataclass(slots=True)
class RequestMetrics:
    """Timing of one request. `arrival_time` is wall time; the `_ts` fields are seconds of time.monotonic()."""

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0  # seconds from arrival
    num_generation_tokens: int = 0
    num_preemptions: int = 0

    @property
    def queued_time_s(self) -> float:
        return self.scheduled_ts - self.queued_ts

    @property
    def prefill_time_s(self) -> float:
        return self.first_token_ts - self.scheduled_ts

    @property
    def decode_time_s(self) -> float:
        return self.last_token_ts - self.first_token_ts

    @property
    def inference_time_s(self) -> float:
        return self.last_token_ts - self.scheduled_ts
