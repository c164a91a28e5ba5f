"""Verification alone: the same tokens as one by one, and the distribution that the parameters define, exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from octavo.ops.reference import ReferenceOps
from octavo.sampling.sampler import Sampler
from octavo.speculative.verify import verify
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import NewRequestData
from tests.sampling.test_distribution import expected_distribution

V = 5
NUM_ROWS = 400
TABLE = np.random.default_rng(5).normal(0, 1.2, (V, V)).astype(np.float32)  # [last token, next token]


def sampler_of(params: dict, num_rows: int, vocab_size: int = V, first_seed: int = 0) -> Sampler:
    sampler = Sampler(ReferenceOps(), vocab_size, num_rows)
    for row in range(num_rows):
        sampler.add_request(row, request(SamplingParams(max_tokens=None, **params), first_seed + row))
    return sampler


def request(params: SamplingParams, seed: int) -> NewRequestData:
    return NewRequestData(f"r{seed}", [1, 2], 2, params, seed, None, [], ([],), 0)


def logits_behind(token_ids: list[int]) -> np.ndarray:
    return TABLE[token_ids].copy()


@pytest.mark.parametrize("params", [{}, {"temperature": 0.5}, {"top_k": 3, "top_p": 0.8}, {"min_p": 0.2}], ids=str)
@pytest.mark.parametrize("draft", [[0, 1], [3, 3]], ids=str)
def test_accepted_and_own_tokens_together_follow_the_distribution(params, draft):
    """Chi-square over the first two tokens: one guess that is right yields the second from the same step."""
    counts = np.zeros((V, V))
    num_rounds = 10
    for number in range(num_rounds):
        sampler = sampler_of(params, NUM_ROWS, first_seed=number * NUM_ROWS)
        logits = np.tile(logits_behind([2, *draft]), (NUM_ROWS, 1))
        tokens = verify(sampler, logits, np.arange(NUM_ROWS), [draft] * NUM_ROWS, None).token_ids
        short = np.array([row for row in range(NUM_ROWS) if len(tokens[row]) == 1])
        assert len(short) and len(short) < NUM_ROWS
        seconds = sampler.sample(logits_behind([tokens[row][0] for row in short]), short).token_ids
        for row, token_id in zip(short, seconds, strict=True):
            tokens[row].append(token_id)
        for first, second, *_ in tokens:
            counts[first, second] += 1
    first = expected_distribution(TABLE[2], **params)
    expected = np.array([first[i] * expected_distribution(TABLE[i], **params) for i in range(V)])
    expected *= NUM_ROWS * num_rounds
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    degrees = possible.sum() - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5


PARAMS = [
    {"temperature": 0},
    {"temperature": 1.3, "top_p": 0.8},
    {"repetition_penalty": 1.5, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"logit_bias": {3: 2.0}, "allowed_token_ids": [0, 1, 3, 4]},
    {"min_p": 0.3, "logprobs": 2},
]


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("draft", list(itertools.product(range(3), repeat=3))[::5], ids=str)
def test_tokens_and_logprobs_are_those_that_come_one_by_one(params, draft):
    num_rows = 40
    guessed = verify(
        sampler_of(params, num_rows),
        np.tile(logits_behind([2, *draft]), (num_rows, 1)),
        np.arange(num_rows),
        [list(draft)] * num_rows,
        None,
    )
    plain = sampler_of(params, num_rows)
    last = np.full(num_rows, 2)
    going_on = np.arange(num_rows)
    for depth in range(4):
        sampled = plain.sample(logits_behind(list(last[going_on])), going_on)
        rows = going_on.tolist()
        for place, row in enumerate(rows):
            assert guessed.token_ids[row][depth] == sampled.token_ids[place]
            if "logprobs" in params:
                one, size = sampled.logprobs[place], 4 * sampled.logprobs[place].num_candidates
                assert guessed.logprobs[row].logprobs[depth * size : (depth + 1) * size] == one.logprobs
        last[going_on] = sampled.token_ids
        going_on = np.array([row for row in rows if len(guessed.token_ids[row]) > depth + 1], np.intp)
        assert all(last[row] == draft[depth] for row in going_on)


def test_a_row_that_fails_behind_a_right_guess_keeps_it_and_is_as_if_nothing_was_sampled_there():
    sampler = sampler_of({"temperature": 0, "presence_penalty": 0.1}, 2)
    token_id = int(TABLE[2].argmax())
    lines = logits_behind([2, token_id, 2, token_id])
    lines[1] = np.nan
    result = verify(sampler, lines, np.arange(2), [[token_id], [token_id]], None)
    assert result.failures == {} and result.token_ids[0] == [token_id] and len(result.token_ids[1]) == 2
    again = sampler.sample(logits_behind([token_id]), [0])
    assert not again.failures and again.token_ids == result.token_ids[1][1:]
    lines[0] = np.nan
    assert set(verify(sampler, lines[:2], np.arange(1), [[token_id]], None).failures) == {0}


def test_each_position_has_its_own_mask():
    sampler = sampler_of({"temperature": 0}, 1)
    masks = np.array([[1 << 4], [1 << 0], [1 << 3]], np.int32)
    assert verify(sampler, logits_behind([2, 4, 0]), np.arange(1), [[4, 0]], masks).token_ids == [[4, 0, 3]]
