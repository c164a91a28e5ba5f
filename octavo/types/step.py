"""Where the scheduler and the worker meet: the input and the output of one step.

The scheduler sends only what changed; the worker keeps the rest in its rows. A request's first appearance, and its
return after a preemption, is a `NewRequestData` with everything; afterwards it is a column of `CachedRequestData`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.types.messages import PackedArray, PackedLogprobs
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_params import SamplingParams

BlockIds = tuple[list[int], ...]  # one list per KV cache group


@dataclass(slots=True)
class NewRequestData:
    """A request that takes a row: new, or resumed after a preemption (then token_ids holds its output too).

    token_ids: prompt followed by the output so far (the scheduler's own list: copy, never keep)
    eos_token_id, stop_token_ids: what min_tokens must mask
    adapter: identity of a LoRA adapter
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    eos_token_id: int | None
    stop_token_ids: list[int]
    block_ids: BlockIds
    num_computed_tokens: int
    pooling_params: PoolingParams | None = None
    second_text_start: int | None = None
    adapter: str | None = None


@dataclass(slots=True)
class CachedRequestData:
    """Columns over the requests of this step that already have a row.

    new_block_ids: blocks appended since last step, per request, or None
    new_token_ids: the tokens to compute where sampled ones are among them; empty unless there are several pipeline
        stages, of which only the last knows what it has sampled
    """

    request_ids: list[str] = field(default_factory=list)
    new_block_ids: list[BlockIds | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    new_token_ids: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class SchedulerOutput:
    """Who computes how many tokens in one step.

    num_scheduled_tokens: request id -> tokens, in batch order (every scheduled request, new and cached)
    scheduled_spec_tokens: request id -> draft token ids to verify (included in num_scheduled_tokens)
    finished_request_ids, preempted_request_ids: rows to give up before this step
    structured_request_ids: scheduled requests whose next token is constrained by a grammar
    """

    scheduled_new_requests: list[NewRequestData] = field(default_factory=list)
    scheduled_cached_requests: CachedRequestData = field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    scheduled_spec_tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_request_ids: list[str] = field(default_factory=list)
    preempted_request_ids: list[str] = field(default_factory=list)
    structured_request_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class GrammarOutput:
    """Allowed-token bit masks for the step: int32 words, one row of ceil(vocab/32) words per request and draft.

    late_request_ids: requests whose masks are not there in time: they get no token in this step
    """

    request_ids: list[str]
    bitmask: bytes
    late_request_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ModelRunnerOutput:
    """The result of one step.

    sampled_token_ids: request id -> new tokens; a request whose prompt is not finished has no entry
    logprobs: request id -> one position per new token; only for requests that asked
    prompt_logprobs: request id -> positions 1.. of the prompt; only at the prompt's end, for requests that asked
    draft_token_ids: request id -> proposals for the next step
    pooled: request id -> what a pooling model made of a prompt; these end
    failures: request id -> error text (NaN logits, a logits processor that raised); these end, the others go on
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, PackedLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, PackedLogprobs] = field(default_factory=dict)
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    pooled: dict[str, PackedArray] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
