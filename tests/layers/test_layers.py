"""Layers by themselves: what they store, stack and leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.layers.attention import Attention, QKNorm
from octavo.layers.linear import Linear
from octavo.layers.norm import LayerNorm, NoNorm, RMSNorm
from octavo.layers.parameters import Parameters
from octavo.layers.rotary import DynamicRope, LinearRope, LongRope, Rope, YarnRope, cos_sin_table
from octavo.ops.reference import ReferenceOps
from octavo.types.kv_spec import FullAttentionSpec, SlidingWindowSpec
from tests.models.harness import ArrayWeights

OPS = ReferenceOps()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- rotary ------------------------------------------------------------------------------------------------------------


def test_the_table_holds_cosines_left_and_sines_right() -> None:
    table = cos_sin_table(Rope(100.0, 4), 7)
    assert table.dtype == np.float32 and table.shape == (7, 4)
    angles = np.arange(7)[:, None] * np.array([1.0, 100.0**-0.5])
    np.testing.assert_allclose(table, np.concatenate([np.cos(angles), np.sin(angles)], axis=1), rtol=0, atol=1e-6)


def test_linear_is_the_default_at_a_fraction_of_the_position() -> None:
    scaled, plain = cos_sin_table(LinearRope(100.0, 8, 4.0), 41), cos_sin_table(Rope(100.0, 8), 11)
    np.testing.assert_allclose(scaled[::4], plain, rtol=0, atol=1e-6)


def test_dynamic_and_longrope_choose_by_the_longest_sequence_admitted() -> None:
    plain = Rope(100.0, 8).inverse_frequencies(0)
    dynamic = DynamicRope(100.0, 8, factor=2.0, original_length=32)
    np.testing.assert_array_equal(dynamic.inverse_frequencies(32), plain)
    assert (dynamic.inverse_frequencies(64)[1:] < plain[1:]).all()
    long = LongRope(100.0, 8, 2.0, 32, short_factors=(1.0,) * 4, long_factors=(1.0, 2.0, 4.0, 8.0))
    np.testing.assert_array_equal(long.inverse_frequencies(32), plain)
    np.testing.assert_allclose(long.inverse_frequencies(33) * [1, 2, 4, 8], plain, rtol=1e-6)


def test_yarn_magnitude_scales_cosine_and_sine() -> None:
    yarn = YarnRope(100.0, 8, factor=4.0, original_length=32)
    assert yarn.magnitude() == pytest.approx(0.1 * np.log(4.0) + 1)
    np.testing.assert_allclose(cos_sin_table(yarn, 1)[0, :4], np.full(4, yarn.magnitude(), np.float32))


# -- norms and projections ---------------------------------------------------------------------------------------------


def test_every_norm_adds_before_it_normalises() -> None:
    x, residual = random(3, 8), random(3, 8, seed=1)
    weight, bias = random(8, seed=2), random(8, seed=3)
    for norm in (RMSNorm(weight, 1e-5), LayerNorm(weight, bias, 1e-5), NoNorm()):
        normed, total = norm.add(x, residual, OPS)
        np.testing.assert_array_equal(total, x + residual)
        np.testing.assert_array_equal(normed, norm(x + residual, OPS))


def test_query_and_key_norms_by_head_and_over_all_heads() -> None:
    query, key = random(3, 4, 8), random(3, 2, 8, seed=1)
    by_head = QKNorm(RMSNorm(random(8), 1e-5), RMSNorm(random(8, seed=1), 1e-5), "head", range(4), range(2))
    normed, _ = by_head(query, key, OPS)
    np.testing.assert_array_equal(normed[:, 2], by_head.query(query[:, 2], OPS))
    together = QKNorm(RMSNorm(random(32), 1e-5), RMSNorm(random(16, seed=1), 1e-5), "all_heads", range(4), range(2))
    _, normed_key = together(query, key, OPS)
    np.testing.assert_array_equal(normed_key.reshape(3, 16), together.key(key.reshape(3, 16), OPS))


def test_projections_of_one_input_are_stacked_with_their_biases() -> None:
    tensors = {"q.weight": random(4, 6), "k.weight": random(2, 6, seed=1), "q.bias": random(4), "k.bias": random(2)}
    linear = Parameters(ArrayWeights(tensors), OPS).linear(["q", "k"], [4, 2], 6, bias=True)
    x = random(3, 6, seed=5)
    out = linear(x, OPS)
    np.testing.assert_allclose(out[:, :4], x @ tensors["q.weight"].T + tensors["q.bias"], rtol=1e-5)
    np.testing.assert_allclose(out[:, 4:], x @ tensors["k.weight"].T + tensors["k.bias"], rtol=1e-5)


def test_transposed_checkpoints_are_turned_but_tables_are_not() -> None:
    tensors = {"fc.weight": random(6, 4), "wte.weight": random(9, 6)}
    parameters = Parameters(ArrayWeights(tensors), OPS, transposed=True)
    linear = parameters.linear(["fc"], [4], 6, bias=False)
    np.testing.assert_array_equal(linear.weight.dequantized(), tensors["fc.weight"].T)
    np.testing.assert_array_equal(parameters.table("wte", 9, 6).dequantized(), tensors["wte.weight"])


def test_an_attention_layer_says_what_it_stores() -> None:
    weight = Linear(OPS.pack([random(4, 4)]))
    full = Attention("a", weight, weight, num_heads=4, num_kv_heads=2, head_dim=16, scale=1.0)
    assert full.kv_cache_spec(8, "float32") == FullAttentionSpec(8, 2, 16, "float32")
    sliding = Attention("b", weight, weight, 4, 2, 16, 1.0, sliding_window=13)
    assert sliding.kv_cache_spec(8, "float32") == SlidingWindowSpec(8, 2, 16, "float32", 13)
