"""What leaves the engine core: new tokens per request."""

from __future__ import annotations

import enum

import msgspec

from octavo.types.request import FinishReason
from octavo.types.stats import SchedulerStats


class PackedLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities of `num_positions` positions, `num_candidates` ids each, as raw little-endian arrays.

    token_ids: int32 [num_positions, num_candidates]; column 0 is the sampled (or prompt) token, the rest the top k
    logprobs: float32 [num_positions, num_candidates]
    ranks: int32 [num_positions], the 1-based rank of column 0 among the whole vocabulary

    Bytes and not lists: the scheduler passes them on unopened and they cost no objects on the step path.
    """

    num_positions: int
    num_candidates: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes


class PackedArray(msgspec.Struct, array_like=True, frozen=True):
    """A float32 array as it crosses processes. data: C order, little-endian."""

    shape: list[int]
    data: bytes


class EngineCoreEventType(enum.IntEnum):
    """Moments of a request's life inside the core."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct, array_like=True, frozen=True):
    """A moment of a request's life; timestamp in seconds of time.monotonic() in the core's process."""

    type: EngineCoreEventType
    timestamp: float


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What one step did for one request.

    logprobs: one position per new token; prompt_logprobs: positions 1.. of the prompt, delivered once, at its end
    stop_reason: the stop token id, "repetition_detected", or an error text with FinishReason.ERROR
    num_cached_tokens: prompt tokens taken from the prefix cache at first admission
    pooled: what a pooling model made of the prompt
    """

    request_id: str
    new_token_ids: list[int]
    logprobs: PackedLogprobs | None = None
    prompt_logprobs: PackedLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    events: list[EngineCoreEvent] = []
    pooled: PackedArray | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True):
    """One step's outputs; timestamp in seconds of time.monotonic() in the core's process."""

    outputs: list[EngineCoreOutput] = []
    engine_index: int = 0
    timestamp: float = 0.0
    scheduler_stats: SchedulerStats | None = None
