"""n > 1: one request fanned out into n sequences, and their results put together again."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import msgspec

from octavo.types.outputs import CompletionOutput, PromptLogprobs
from octavo.types.request import EngineCoreRequest

SEED_RANGE = 2**64


@dataclass(slots=True)
class ParentRequest:
    """What the sequences of one n > 1 request share. Completions are collected until all have finished."""

    num_children: int
    num_finished: int = 0
    completions: dict[int, CompletionOutput] = field(default_factory=dict)
    prompt_logprobs: PromptLogprobs | None = None  # from the first sequence, the only one that computes them
    num_cached_tokens: int | None = None

    @property
    def finished(self) -> bool:
        return self.num_finished == self.num_children

    def take(self, completion: CompletionOutput) -> None:
        """Record the finished completion of one child."""
        self.completions[completion.index] = completion

    def ordered_completions(self) -> list[CompletionOutput]:
        """Return the finished completions by index."""
        return [self.completions[index] for index in sorted(self.completions)]


def fan_out(request: EngineCoreRequest) -> list[EngineCoreRequest]:
    """Return one request per sequence: n = 1, seed + index, prompt logprobs only in the first."""
    params = request.sampling_params
    first, others = copy.copy(params), copy.copy(params)
    first.n = others.n = 1
    if params.prompt_logprobs is not None:
        # The first alone must compute every position of the prompt; the others share its blocks.
        others.prompt_logprobs = others.skip_reading_prefix_cache = None
    return [
        msgspec.structs.replace(
            request,
            request_id=f"{request.request_id}.{index}",
            sampling_params=first if index == 0 else others,
            seed=(request.seed + index) % SEED_RANGE,
        )
        for index in range(params.n)
    ]
