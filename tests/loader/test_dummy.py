from __future__ import annotations

import numpy as np

from octavo.loader.dummy import DummyWeights


def test_values_depend_on_name_and_seed_only() -> None:
    first = DummyWeights(seed=1).get("model.layers.0.mlp.up_proj.weight", (64, 32))
    other = DummyWeights(seed=1)
    other.get("something.else", (3,)).float32()
    again = other.get("model.layers.0.mlp.up_proj.weight", (64, 32))
    np.testing.assert_array_equal(first.float32(), again.float32())
    assert not np.array_equal(first.float32(), DummyWeights(seed=2).get(first.name, (64, 32)).float32())
    assert not np.array_equal(first.float32(), DummyWeights(seed=1).get("model.norm.weight", (64, 32)).float32())


def test_matrices_are_small_and_norms_near_one() -> None:
    weights = DummyWeights()
    matrix = weights.get("a.weight", (100, 50)).float32()
    assert matrix.shape == (100, 50) and matrix.dtype == np.float32
    assert 0.01 < np.abs(matrix).max() <= 0.02 and abs(matrix.mean()) < 0.002
    assert abs(weights.get("norm.weight", (500,)).float32().mean() - 1) < 0.01
    assert abs(weights.get("q_proj.bias", (500,)).float32().mean()) < 0.01


def test_tied_model_has_no_output_matrix() -> None:
    assert DummyWeights(tied=True).has("lm_head.weight") is False
    assert DummyWeights(tied=True).has("model.embed_tokens.weight") is True
    assert DummyWeights().has("lm_head.weight") is True
    assert DummyWeights().unused() == []
