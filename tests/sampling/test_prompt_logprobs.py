"""Prompt log-probabilities: the same bits however the prompt is cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.ops.interface import Ops
from octavo.sampling.logprobs import join, pack


@pytest.mark.parametrize("k", [0, 3, 50])
def test_chunks_join_to_the_whole(ops: Ops, k: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (11, 50)).astype(np.float32)
    targets = rng.integers(0, 50, 11).astype(np.int32)
    whole = pack(*ops.top_logprobs(logits, targets, k))
    for cuts in ([4], [1, 2, 10]):
        parts = [
            pack(*ops.top_logprobs(logits[start:end], targets[start:end], k))
            for start, end in zip([0, *cuts], [*cuts, 11], strict=True)
        ]
        assert join(parts, k + 1) == whole
    assert (whole.num_positions, whole.num_candidates) == (11, k + 1)
    ids = np.frombuffer(whole.token_ids, "<i4").reshape(11, k + 1)
    assert (ids[:, 0] == targets).all()
    values = np.frombuffer(whole.logprobs, "<f4").reshape(11, k + 1)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(values, np.take_along_axis(exact, ids.astype(np.int64), 1), atol=2e-6)


def test_a_prompt_of_one_token_has_no_positions() -> None:
    joined = join([], 6)
    assert (joined.num_positions, joined.num_candidates, joined.token_ids) == (0, 6, b"")
