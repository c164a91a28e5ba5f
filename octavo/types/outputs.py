"""What the user gets: RequestOutput and its parts, with vLLM's field names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from octavo.types.adapters import LoRARequest
from octavo.types.messages import PackedArray
from octavo.types.stats import RequestMetrics


class Logprob(msgspec.Struct, gc=False):
    """One candidate token at one position. rank is 1-based; decoded_token is the text the token adds there.

    gc=False: there are millions of them, they hold no references that could form a cycle, and the collector would
    walk them all again and again.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsOnePosition = dict[int, Logprob]
SampleLogprobs = list[LogprobsOnePosition]
PromptLogprobs = list[LogprobsOnePosition | None]  # the first position has none


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence.

    finish_reason: stop, length, abort, error or repetition; None while it runs
    stop_reason: the stop string or stop token id that ended it; None for end-of-sequence and length
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The state of one request, final or so far.

    prompt: the text, or None when the prompt came as token ids
    prompt_logprobs: one entry per prompt token, the first None; None unless asked for
    num_cached_tokens: prompt tokens that came from the prefix cache
    pooled: of a pooling request, see `PoolingRequestOutput.of`
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, object] | None = field(default=None)
    pooled: PackedArray | None = None
