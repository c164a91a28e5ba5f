"""Whole sampler, many draws: chi-square against the distribution that the parameters define. Seeds are fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.ops.interface import Ops
from octavo.sampling.sampler import Sampler
from octavo.types.step import NewRequestData

V = 40
NUM_ROWS = 500
NUM_STEPS = 20
MakeRequest = Callable[..., NewRequestData]


def expected_distribution(
    logits: np.ndarray, temperature: float = 1.0, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """Return [V] float64, written from the definition: sort, keep, renormalise after each filter."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    if top_k:
        p[p < np.sort(p)[-top_k]] = 0
    p /= p.sum()
    reached = 0.0
    for token_id in np.argsort(-p, kind="stable"):
        if reached >= top_p:
            p[token_id] = 0
        reached += p[token_id]
    return p / p.sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.0},
        {"top_k": 7},
        {"top_p": 0.7},
        {"min_p": 0.03},
        {"temperature": 1.5, "min_p": 0.05, "top_k": 12, "top_p": 0.9},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(ops: Ops, make_request: MakeRequest, params: dict[str, Any]) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, V).astype(np.float32)
    sampler = Sampler(ops, V, NUM_ROWS)
    for row in range(NUM_ROWS):
        sampler.add_request(row, make_request(seed=row, **params))
    counts = np.zeros(V, np.int64)
    for _ in range(NUM_STEPS):
        step = np.tile(logits, (NUM_ROWS, 1))
        np.add.at(counts, sampler.sample(step, list(range(NUM_ROWS))).token_ids, 1)
    expected = expected_distribution(logits, **params) * NUM_ROWS * NUM_STEPS
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    chi_square = ((counts[common] - expected[common]) ** 2 / expected[common]).sum()
    degrees = int(common.sum()) - 1
    # mean + 4 standard deviations of the chi-square distribution
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)
    assert counts[~common].sum() <= expected[~common].sum() + 4 * np.sqrt(expected[~common].sum() + 1)


def test_children_with_neighbouring_seeds_draw_independently(ops: Ops, make_request: MakeRequest) -> None:
    """The pairs of n=2 children fill the product of their distributions."""
    sampler = Sampler(ops, 4, 2 * NUM_ROWS)
    for row in range(2 * NUM_ROWS):
        sampler.add_request(row, make_request(seed=row))
    pairs = np.zeros((4, 4))
    for _ in range(NUM_STEPS):
        tokens = sampler.sample(np.zeros((2 * NUM_ROWS, 4), np.float32), list(range(2 * NUM_ROWS))).token_ids
        np.add.at(pairs, (tokens[0::2], tokens[1::2]), 1)
    expected = NUM_ROWS * NUM_STEPS / 16
    assert ((pairs - expected) ** 2 / expected).sum() < 15 + 4 * np.sqrt(30)
