"""Finds out which guesses are right, by sampling every position exactly as without guesses.

The model has computed each row's next token and the guesses behind it in one forward. Here the first position is
sampled; if what comes out is what was guessed, the logits behind it are those that the model would have computed next,
so that position is sampled, and so on. A draw is a function of the request's seed and the position
(`octavo.sampling.philox`), masks and penalties see only tokens that are kept: the tokens are those that would have come
one by one, whatever was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.ops.interface import Float, Int
from octavo.sampling.logprobs import join
from octavo.sampling.sampler import Sampler
from octavo.types.messages import PackedLogprobs


@dataclass(slots=True)
class VerifiedTokens:
    """token_ids: the new tokens of each row, guesses that were right and one of the model's own; keys are indices.

    failures: why a row got no token at all; one that fails behind a right guess keeps that, and fails in its next step
    """

    token_ids: list[list[int]]
    logprobs: dict[int, PackedLogprobs] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def verify(
    sampler: Sampler,
    logits: Float,
    rows: NDArray[np.intp],
    drafts: Sequence[Sequence[int]],
    grammar_bitmask: Int | None,
) -> VerifiedTokens:
    """Sample the rows up to and including the first position where a guess is wrong.

    logits, grammar_bitmask: for each row in turn a line for each of its guesses, and one for what follows
    """
    first_lines = np.zeros(len(rows), np.intp)
    np.cumsum([len(draft) + 1 for draft in drafts[:-1]], out=first_lines[1:])
    result = VerifiedTokens([[] for _ in drafts])
    logprobs: dict[int, list[PackedLogprobs]] = {}
    going_on = list(range(len(rows)))
    depth = 0
    while going_on:
        lines = first_lines[going_on] + depth
        bitmask = None if grammar_bitmask is None else grammar_bitmask[lines]
        sampled = sampler.sample(_lines(logits, lines), rows[going_on], bitmask)
        for place, packed in sampled.logprobs.items():
            logprobs.setdefault(going_on[place], []).append(packed)
        right = []
        for place, (index, token_id) in enumerate(zip(going_on, sampled.token_ids, strict=True)):
            if place in sampled.failures:
                if depth == 0:
                    result.failures[index] = sampled.failures[place]
                continue
            result.token_ids[index].append(token_id)
            if depth < len(drafts[index]) and drafts[index][depth] == token_id:
                right.append(index)
        going_on = right
        depth += 1
    result.logprobs = {index: join(parts, parts[0].num_candidates) for index, parts in logprobs.items()}
    return result


def _lines(logits: Float, lines: NDArray[np.intp]) -> Float:
    """Return the lines, without a copy where there is one or all."""
    if len(lines) == 1:
        return logits[lines[0] : lines[0] + 1]
    return logits if len(lines) == len(logits) else logits[lines]
