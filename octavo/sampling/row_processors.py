"""What masks or shifts one request's logits before penalties: each is made once per request and knows nothing else.

Order (as in vLLM): allowed ids, bad words, min_tokens, logit_bias, the end of reasoning, then custom processors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from octavo.ops.interface import Float
from octavo.sampling.reasoning_end import ReasoningEnd
from octavo.types.step import NewRequestData


class RowProcessor(Protocol):
    """Changes a request's logits [V] in place, given the tokens that it has generated."""

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None: ...


class AllowedTokens:
    """Forbids everything but the allowed ids."""

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = np.array(token_ids, np.intp)

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        kept = logits[self._token_ids]
        logits.fill(-np.inf)
        logits[self._token_ids] = kept


class BadWords:
    """Forbids the last token of each sequence whose other tokens were just generated."""

    def __init__(self, sequences: list[list[int]]) -> None:
        single = [sequence[0] for sequence in sequences if len(sequence) == 1]
        self._single = np.array(single, np.intp)
        self._longer = [(sequence[:-1], sequence[-1]) for sequence in sequences if len(sequence) > 1]

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        logits[self._single] = -np.inf
        for prefix, last in self._longer:
            if output_ids[-len(prefix) :] == prefix:
                logits[last] = -np.inf


class MinTokens:
    """Forbids every id that would end the request until it has generated min_tokens."""

    def __init__(self, min_tokens: int, stop_token_ids: list[int]) -> None:
        self._min_tokens = min_tokens
        self._stop_token_ids = np.array(stop_token_ids, np.intp)

    def is_over(self, num_output_tokens: int) -> bool:
        return num_output_tokens >= self._min_tokens

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        if not self.is_over(len(output_ids)):
            logits[self._stop_token_ids] = -np.inf


class LogitBias:
    """Adds to chosen logits."""

    def __init__(self, biases: dict[int, float]) -> None:
        self._token_ids = np.array(list(biases), np.intp)
        self._biases = np.array(list(biases.values()), np.float32)

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        logits[self._token_ids] += self._biases


def make_row_processors(request: NewRequestData) -> list[RowProcessor]:
    """Return the built-in processors that the request needs, in order."""
    params = request.sampling_params
    processors: list[RowProcessor] = []
    if params.allowed_token_ids is not None:
        processors.append(AllowedTokens(params.allowed_token_ids))
    if params.bad_words_token_ids:
        processors.append(BadWords(params.bad_words_token_ids))
    ends = list(request.stop_token_ids)
    if request.eos_token_id is not None:
        ends.append(request.eos_token_id)
    num_output_tokens = len(request.token_ids) - request.num_prompt_tokens
    if num_output_tokens < params.min_tokens and ends:
        processors.append(MinTokens(params.min_tokens, ends))
    if params.logit_bias:
        processors.append(LogitBias(params.logit_bias))
    markers = params.reasoning_markers
    if markers is not None and (params.thinking_token_budget is not None or markers.eos_token_ids):
        processors.append(ReasoningEnd(params.thinking_token_budget, markers))
    return processors
