"""ALiBi's slopes: the paper's, and those of trained models for other numbers of heads."""

from __future__ import annotations

import numpy as np
import pytest
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from octavo.layers.alibi import alibi_slopes


def test_a_power_of_two_has_the_papers_slopes() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 12, 32, 40, 71, 112])
def test_other_numbers_have_those_of_trained_models(num_heads: int) -> None:
    for max_bias in (8, 16):
        biases = build_mpt_alibi_tensor(num_heads, 2, max_bias).numpy()[:, 0, 0]
        np.testing.assert_allclose(alibi_slopes(num_heads, max_bias), -biases, rtol=1e-6)
