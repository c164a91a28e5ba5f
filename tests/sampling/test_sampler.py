"""The sampler: each parameter's effect, failures that stay with their row, logprobs modes, independent rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.ops.interface import Ops
from octavo.sampling.sampler import Sampler
from octavo.types.messages import PackedLogprobs
from octavo.types.step import NewRequestData

V = 200
MakeRequest = Callable[..., NewRequestData]


def random_logits(num_rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (num_rows, V)).astype(np.float32)


def unpack(packed: PackedLogprobs) -> tuple[list[int], np.ndarray, int]:
    """Return ids, values and rank of the only position."""
    assert packed.num_positions == 1
    ids = np.frombuffer(packed.token_ids, "<i4")
    values = np.frombuffer(packed.logprobs, "<f4")
    assert len(ids) == len(values) == packed.num_candidates
    return ids.tolist(), values, int(np.frombuffer(packed.ranks, "<i4")[0])


def log_softmax(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def sample_one(ops: Ops, request: NewRequestData, logits: np.ndarray, **sampler: Any) -> int:
    instance = Sampler(ops, V, 4, **sampler)
    instance.add_request(2, request)
    output = instance.sample(logits[None].copy(), [2])
    assert not output.failures
    return output.token_ids[0]


# -- greedy and random -------------------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_of_equal_maxima(ops: Ops, make_request: MakeRequest) -> None:
    logits = random_logits(1)[0]
    logits[[9, 50, 120]] = 30
    assert sample_one(ops, make_request(temperature=0), logits) == 9
    for seed in range(10):  # B035: top_k=1 is greedy, ties included
        assert sample_one(ops, make_request(top_k=1, seed=seed), logits) == 9


def test_a_seed_repeats_and_different_seeds_differ(ops: Ops, make_request: MakeRequest) -> None:
    def tokens(seed: int) -> list[int]:
        sampler = Sampler(ops, V, 1)
        sampler.add_request(0, make_request(seed=seed))
        return [sampler.sample(np.zeros((1, V), np.float32), [0]).token_ids[0] for _ in range(20)]

    assert tokens(5) == tokens(5)
    assert len({tuple(tokens(seed)) for seed in range(8)}) == 8
    assert len(set(tokens(5))) > 5  # the position moves on
    assert tokens(-3) == tokens(2**64 - 3)


def test_a_resumed_request_goes_on_with_the_same_draws(ops: Ops, make_request: MakeRequest) -> None:
    """After a preemption or an engine's death the request comes back with its output and takes any row."""
    params = {"temperature": 1.3, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "min_tokens": 6, "logprobs": 3}
    params |= {"bad_words": [[3, 4], [8]], "eos": 9}
    steps = [random_logits(1, seed) for seed in range(12)]
    sampler = Sampler(ops, V, 4)
    sampler.add_request(0, make_request(**params))
    whole = [sampler.sample(logits.copy(), [0]) for logits in steps]
    tokens = [output.token_ids[0] for output in whole]
    for cut in (1, 5, 6, 11):
        resumed = Sampler(ops, V, 4)
        resumed.add_request(3, make_request(output=tokens[:cut], **params))
        rest = [resumed.sample(logits.copy(), [3]) for logits in steps[cut:]]
        assert [output.token_ids[0] for output in rest] == tokens[cut:]
        assert [output.logprobs[0] for output in rest] == [output.logprobs[0] for output in whole[cut:]]


def test_a_freed_row_leaves_nothing_behind(ops: Ops, make_request: MakeRequest) -> None:
    sampler = Sampler(ops, V, 1)
    sampler.add_request(
        0, make_request(allowed_token_ids=[7], logprobs=2, presence_penalty=2, min_p=1, top_k=5, top_p=0.1)
    )
    sampler.sample(random_logits(1), [0])
    sampler.remove_request(0)
    sampler.add_request(0, make_request(seed=4))
    fresh = Sampler(ops, V, 1)
    fresh.add_request(0, make_request(seed=4))
    logits = random_logits(1, 9)
    assert sampler.sample(logits.copy(), [0]) == fresh.sample(logits.copy(), [0])


def test_no_rows_give_no_tokens(ops: Ops) -> None:
    assert Sampler(ops, V, 1).sample(np.zeros((0, V), np.float32), []).token_ids == []


# -- masks, biases, penalties ------------------------------------------------------------------------------------------


def test_allowed_ids_are_the_only_ones(ops: Ops, make_request: MakeRequest) -> None:
    for seed in range(30):
        request = make_request(allowed_token_ids=[4, 90], seed=seed, temperature=2, logit_bias={5: 100})
        assert sample_one(ops, request, random_logits(1, seed)[0]) in {4, 90}


def test_bad_words_are_not_completed(ops: Ops, make_request: MakeRequest) -> None:
    logits = np.zeros(V, np.float32)
    logits[[10, 11, 12]] = [9, 8, 7]
    greedy: dict[str, Any] = {"temperature": 0}
    assert sample_one(ops, make_request(bad_words=[[10]], **greedy), logits) == 11
    assert sample_one(ops, make_request(bad_words=[[5, 6, 10]], output=[5, 6], **greedy), logits) == 11
    assert sample_one(ops, make_request(bad_words=[[5, 6, 10]], output=[6], **greedy), logits) == 10
    assert sample_one(ops, make_request(bad_words=[[5, 6, 10], [11]], output=[4, 5, 6], **greedy), logits) == 12
    # the prompt is not output
    assert sample_one(ops, make_request(bad_words=[[6, 10]], prompt=[6], **greedy), logits) == 10


def test_min_tokens_masks_every_way_to_end(ops: Ops, make_request: MakeRequest) -> None:
    """B008: end-of-sequence too, against a bias, and only until the count is reached."""
    logits = np.zeros((1, V), np.float32)
    logits[0, 5] = 1
    sampler = Sampler(ops, V, 1)
    bias = {7: 100, 8: 90}
    sampler.add_request(0, make_request(min_tokens=3, eos=7, stop_token_ids=[8], logit_bias=bias, temperature=0))
    tokens = [sampler.sample(logits.copy(), [0]).token_ids[0] for _ in range(4)]
    assert tokens == [5, 5, 5, 7]


def test_logit_bias_shifts_logits(ops: Ops, make_request: MakeRequest) -> None:
    logits = random_logits(1)[0]
    assert sample_one(ops, make_request(temperature=0, logit_bias={33: 100}), logits) == 33
    best = int(logits.argmax())
    assert sample_one(ops, make_request(temperature=0, logit_bias={best: -100}), logits) != best


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        # prompt [1, 2], output [2, 3, 3]
        ({"repetition_penalty": 2.0}, {1: 4.0, 2: 4.0, 3: -16.0, 4: 8.0}),
        ({"presence_penalty": 1.5}, {1: 8.0, 2: 6.5, 3: -9.5, 4: 8.0}),
        ({"frequency_penalty": 0.5}, {1: 8.0, 2: 7.5, 3: -9.0, 4: 8.0}),
        (
            {"repetition_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
            {1: 4.0, 2: 2.5, 3: -18.0, 4: 8.0},
        ),
    ],
)
def test_penalties_count_what_they_should(
    ops: Ops, make_request: MakeRequest, penalty: dict[str, float], expected: dict[int, float]
) -> None:
    """B041: repetition counts prompt and output, presence and frequency the output only."""
    sampler = Sampler(ops, V, 1, "processed_logits")
    ids = [1, 2, 3, 4]
    sampler.add_request(
        0, make_request(prompt=[1, 2], output=[2, 3, 3], temperature=0, logprob_token_ids=ids, **penalty)
    )
    logits = np.full((1, V), -20, np.float32)
    logits[0, ids] = [8, 8, -8, 8]
    reported, values, _ = unpack(sampler.sample(logits, [0]).logprobs[0])
    assert dict(zip(reported[1:], values[1:].tolist(), strict=True)) == expected


def test_counts_follow_the_sampled_tokens(ops: Ops, make_request: MakeRequest) -> None:
    """With equal logits a frequency penalty makes greedy walk through the vocabulary."""
    sampler = Sampler(ops, V, 1)
    sampler.add_request(0, make_request(prompt=[0], temperature=0, frequency_penalty=1))
    tokens = [sampler.sample(np.zeros((1, V), np.float32), [0]).token_ids[0] for _ in range(V + 3)]
    assert tokens == [*range(V), 0, 1, 2]


def test_a_grammar_mask_is_obeyed_per_row(ops: Ops, make_request: MakeRequest) -> None:
    sampler = Sampler(ops, V, 2)
    for row in range(2):
        sampler.add_request(row, make_request(temperature=0))
    logits = random_logits(2)
    best = logits[1].argmax()
    allowed = np.zeros(7 * 32, np.uint8)
    allowed[[31, 32, 190]] = 1
    masks = np.stack((np.packbits(allowed, bitorder="little").view(np.int32), np.full(7, -1, np.int32)))
    tokens = sampler.sample(logits.copy(), [0, 1], masks).token_ids
    assert tokens[0] == max((31, 32, 190), key=lambda i: logits[0, i]) and tokens[1] == best


# -- failures ----------------------------------------------------------------------------------------------------------


def test_nan_logits_fail_their_row_and_no_other(ops: Ops, make_request: MakeRequest) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"logprobs": 5},
        {"repetition_penalty": 1.5, "logprobs": -1},
        {"allowed_token_ids": [5, 6, 7]},
        {"logprob_token_ids": [5], "top_p": 0.5},
    ]
    rows = list(range(2 * len(kinds)))
    logits = random_logits(len(rows))
    outputs = []
    for poisoned in (False, True):
        sampler = Sampler(ops, V, len(rows))
        for row in rows:
            sampler.add_request(row, make_request(seed=row, **kinds[row % len(kinds)]))
        step = logits.copy()
        if poisoned:
            step[: len(kinds), 50] = np.nan
            step[0, 50] = np.inf
            step[1] = -np.inf
        outputs.append(sampler.sample(step, rows))
    clean, poisoned_output = outputs
    assert not clean.failures
    assert sorted(poisoned_output.failures) == rows[: len(kinds)]
    assert all("NaN" in text for text in poisoned_output.failures.values())
    assert poisoned_output.token_ids == [0] * len(kinds) + clean.token_ids[len(kinds) :]
    survivors = {i: packed for i, packed in clean.logprobs.items() if i >= len(kinds)}
    assert poisoned_output.logprobs == survivors


def test_masks_that_leave_nothing_fail_the_row_with_words(ops: Ops, make_request: MakeRequest) -> None:
    """B037: never a token outside the allowed set."""
    sampler = Sampler(ops, V, 2)
    sampler.add_request(0, make_request(allowed_token_ids=[3, 4], bad_words=[[3], [9, 4]], output=[9], logprobs=1))
    sampler.add_request(1, make_request(temperature=0))
    logits = random_logits(2)
    best = int(logits[1].argmax())
    output = sampler.sample(logits, [0, 1])
    assert list(output.failures) == [0] and "no token is left" in output.failures[0]
    assert output.token_ids[1] == best and not output.logprobs


# -- log-probabilities -------------------------------------------------------------------------------------------------


def test_raw_logprobs_ignore_the_sampling_parameters(ops: Ops, make_request: MakeRequest) -> None:
    """B026."""
    logits = random_logits(1)[0]
    expected = log_softmax(logits)
    best = np.argsort(-logits, kind="stable")[:3].tolist()
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 2.0},
        {"top_p": 0.1},
        {"allowed_token_ids": [5]},
        {"repetition_penalty": 1.9, "logit_bias": {6: 50}},
    ]
    for params in kinds:
        sampler = Sampler(ops, V, 1)
        sampler.add_request(0, make_request(logprobs=3, **params))
        output = sampler.sample(logits[None].copy(), [0])
        ids, values, rank = unpack(output.logprobs[0])
        assert ids == [output.token_ids[0], *best]
        np.testing.assert_allclose(values, expected[ids], atol=2e-6)
        assert rank == 1 + int((logits > logits[ids[0]]).sum())


def test_modes_report_logits_or_what_was_drawn_from(ops: Ops, make_request: MakeRequest) -> None:
    logits = random_logits(1)[0]
    params: dict[str, Any] = {"temperature": 0.5, "top_k": 4, "logprobs": 6, "logit_bias": {17: 3}}
    biased = logits.copy()
    biased[17] += 3
    kept = np.argsort(-biased, kind="stable")[:4]
    filtered = np.full(V, -np.inf)
    filtered[kept] = biased[kept] / 0.5
    expected = {
        "raw_logits": logits,
        "raw_logprobs": log_softmax(logits),
        "processed_logits": filtered,
        "processed_logprobs": log_softmax(filtered),
    }
    tokens = set()
    for mode, values in expected.items():
        sampler = Sampler(ops, V, 1, mode)  # type: ignore[arg-type]
        sampler.add_request(0, make_request(**params))
        output = sampler.sample(logits[None].copy(), [0])
        ids, reported, _ = unpack(output.logprobs[0])
        np.testing.assert_allclose(reported, values[ids], atol=2e-6, err_msg=mode)
        assert (reported[1:] == np.sort(reported[1:])[::-1]).all()
        tokens |= set(output.token_ids)
    assert len(tokens) == 1


def test_processed_logprobs_of_a_greedy_row_are_not_scaled(ops: Ops, make_request: MakeRequest) -> None:
    logits = random_logits(1)[0]
    sampler = Sampler(ops, V, 1, "processed_logprobs")
    sampler.add_request(0, make_request(temperature=0, logprobs=1, logit_bias={3: -100}))
    biased = logits.copy()
    biased[3] -= 100
    ids, values, rank = unpack(sampler.sample(logits[None].copy(), [0]).logprobs[0])
    assert rank == 1
    np.testing.assert_allclose(values, log_softmax(biased)[ids], atol=2e-6)


def test_processed_logprobs_of_a_row_with_top_k_1_know_one_token(ops: Ops, make_request: MakeRequest) -> None:
    """Such a row takes the argmax without a draw, but what it would have drawn from is filtered all the same."""
    logits = random_logits(1)[0]
    sampler = Sampler(ops, V, 1, "processed_logprobs")
    sampler.add_request(0, make_request(temperature=1.5, top_k=1, logprobs=2))
    ids, values, _ = unpack(sampler.sample(logits[None].copy(), [0]).logprobs[0])
    assert ids[0] == int(logits.argmax()) and values[0] == 0
    assert np.isneginf(values[2:]).all()


def test_counts_of_candidates(ops: Ops, make_request: MakeRequest) -> None:
    """Zero, some and all; rows with different counts, and chosen ids, in one step."""
    kinds: list[dict[str, Any]] = [
        {"logprobs": 0},
        {},
        {"logprobs": 4},
        {"logprobs": -1},
        {"logprob_token_ids": [9, 3, 150]},
        {"logprobs": 4},
    ]
    sampler = Sampler(ops, V, len(kinds))
    for row, params in enumerate(kinds):
        sampler.add_request(row, make_request(seed=row, **params))
    logits = random_logits(len(kinds))
    output = sampler.sample(logits.copy(), list(range(len(kinds))))
    assert {i: packed.num_candidates for i, packed in output.logprobs.items()} == {0: 1, 2: 5, 3: V + 1, 4: 4, 5: 5}
    ids, values, rank = unpack(output.logprobs[4])
    assert ids == [output.token_ids[4], 9, 3, 150]
    np.testing.assert_allclose(values, log_softmax(logits[4])[ids], atol=2e-6)
    assert rank == 1 + int((logits[4] > logits[4, ids[0]]).sum())


# -- independence ------------------------------------------------------------------------------------------------------


def random_params(rng: np.random.Generator) -> dict[str, Any]:
    """Return parameters of one random request, most features off."""
    choices: dict[str, Callable[[], Any]] = {
        "temperature": lambda: float(rng.choice([0.0, 0.5, 1.7])),
        "top_k": lambda: int(rng.integers(1, 30)),
        "top_p": lambda: float(rng.uniform(0.1, 1)),
        "min_p": lambda: float(rng.uniform(0, 0.2)),
        "repetition_penalty": lambda: float(rng.uniform(0.5, 2)),
        "frequency_penalty": lambda: float(rng.uniform(-2, 2)),
        "presence_penalty": lambda: float(rng.uniform(-2, 2)),
        "logprobs": lambda: int(rng.integers(-1, 5)),
        "logit_bias": lambda: {int(i): 5.0 for i in rng.integers(0, V, 3)},
        "allowed_token_ids": lambda: rng.integers(0, V, 50).tolist(),
        "bad_words": lambda: [[int(i)] for i in rng.integers(0, V, 3)],
        "min_tokens": lambda: int(rng.integers(0, 5)),
    }
    return {name: choose() for name, choose in choices.items() if rng.random() < 0.3}


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("case", range(10))
def test_a_row_does_not_depend_on_its_neighbours_or_its_place(
    ops: Ops, make_request: MakeRequest, mode: Any, case: int
) -> None:
    """Requests come and go and sit anywhere; each one's tokens and logprobs have the bits of a solo run."""
    rng = np.random.default_rng(case)
    num_requests, num_steps, num_rows = 8, 6, 12
    requests = [
        make_request(seed=i, eos=0, prompt=rng.integers(0, V, 5).tolist(), **random_params(rng))
        for i in range(num_requests)
    ]
    logits = [random_logits(num_requests, 100 * case + step) for step in range(num_steps)]
    alone = []
    for i, request in enumerate(requests):
        solo = Sampler(ops, V, 1, mode)
        solo.add_request(0, request)
        outputs = [solo.sample(logits[step][i : i + 1].copy(), [0]) for step in range(num_steps)]
        alone.append([(output.token_ids[0], output.logprobs.get(0)) for output in outputs])

    crowd = Sampler(ops, V, num_rows, mode)
    rows = rng.permutation(num_rows)[:num_requests].tolist()
    for request, row in zip(requests, rows, strict=True):
        crowd.add_request(row, request)
    done = [0] * num_requests
    while min(done) < num_steps:
        ready = [i for i in range(num_requests) if done[i] < num_steps]
        members = rng.permutation(ready)[: rng.integers(1, len(ready) + 1)].tolist()
        step = np.stack([logits[done[i]][i] for i in members])
        output = crowd.sample(step, [rows[i] for i in members])
        assert not output.failures
        for index, i in enumerate(members):
            assert (output.token_ids[index], output.logprobs.get(index)) == alone[i][done[i]], (i, done[i])
            done[i] += 1
