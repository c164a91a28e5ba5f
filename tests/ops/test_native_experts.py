"""Mixtures of experts in C++ against the reference and float64, and their bits whatever else is in the batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.loader.compact import HalfMatrix, QuantizedMatrix
from octavo.ops.interface import ExpertWeights, Ops, Routing
from octavo.ops.reference import ReferenceOps
from octavo.ops.reference_experts import route

Array = NDArray[np.float32]
HIDDEN, INNER, EXPERTS = 70, 36, 9
ROUTINGS = {
    "softmax": Routing(2),
    "softmax of the chosen": Routing(3, renormalize=True),
    "one expert": Routing(1, scale=2.5),
    "all experts": Routing(EXPERTS),
    "sigmoid": Routing(
        4, "sigmoid", renormalize=True, scale=1.8, bias=np.linspace(-0.3, 0.3, EXPERTS, dtype=np.float32)
    ),
}


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrices(kind: str, out_features: int, in_features: int, seed: int) -> list[object]:
    values = [random(out_features, in_features, seed=seed + e) * np.float32(0.3) for e in range(EXPERTS)]
    if kind == "float16":
        return [HalfMatrix.rounded("float16", each) for each in values]
    if kind == "8 bits":
        return [QuantizedMatrix.rounded(np.clip(each, -1, 1), 32) for each in values]
    return list(values)


def experts_of(ops: Ops, kind: str, out_features: int, in_features: int, seed: int, bias: bool) -> ExpertWeights:
    packed = tuple(ops.pack([each]) for each in matrices(kind, out_features, in_features, seed))
    return ExpertWeights(packed, random(EXPERTS, out_features, seed=seed + 99) if bias else None)


def run(ops: Ops, x: Array, logits: Array, routing: Routing, kind: str = "float32") -> Array:
    h = ops.expert_inputs(x, logits, routing, experts_of(ops, kind, 2 * INNER, HIDDEN, 10, bias=False), "silu")
    return ops.expert_outputs(h, logits, routing, experts_of(ops, kind, HIDDEN, INNER, 50, bias=False), [INNER])


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
@pytest.mark.parametrize("kind", ["float32", "float16", "8 bits"])
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 200])
def test_experts_equal_the_reference(native: Ops, routing: Routing, kind: str, num_tokens: int) -> None:
    x, logits = random(num_tokens, HIDDEN), random(num_tokens, EXPERTS, seed=1)
    h = random(num_tokens, routing.top_k * INNER, seed=2)  # of its own: rounded inputs multiply tiny differences
    bias = num_tokens % 2 == 1
    results = []
    for ops in (native, ReferenceOps()):
        gate_up = experts_of(ops, kind, 2 * INNER, HIDDEN, 10, bias)
        down = experts_of(ops, kind, HIDDEN, INNER, 50, bias)
        inputs = ops.expert_inputs(x, logits, routing, gate_up, "silu")
        assert inputs.shape == h.shape and inputs.dtype == np.float32
        results.append((inputs, ops.expert_outputs(h, logits, routing, down, [INNER])))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_the_reference_is_the_definition(routing: Routing) -> None:
    """One token at a time, in float64, straight from the docstrings."""
    x, logits = random(6, HIDDEN), random(6, EXPERTS, seed=1)
    gate_up = matrices("float32", 2 * INNER, HIDDEN, 10)
    down = matrices("float32", HIDDEN, INNER, 50)
    expected = np.zeros((6, HIDDEN))
    for t in range(6):
        logit = logits[t].astype(np.float64)
        scores = np.exp(logit) / np.exp(logit).sum() if routing.scores == "softmax" else 1 / (1 + np.exp(-logit))
        by = scores if routing.bias is None else scores + routing.bias
        chosen = sorted(range(EXPERTS), key=lambda e: -by[e])[: routing.top_k]
        total = scores[chosen].sum() if routing.renormalize else 1.0
        for e in chosen:
            gate, up = np.split(np.asarray(gate_up[e], np.float64) @ x[t], 2)
            hidden = gate / (1 + np.exp(-gate)) * up
            expected[t] += routing.scale * scores[e] / total * (np.asarray(down[e], np.float64) @ hidden)
    np.testing.assert_allclose(run(ReferenceOps(), x, logits, routing), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["float32", "float16", "8 bits"])
def test_a_rows_bits_do_not_depend_on_the_others(native: Ops, kind: str) -> None:
    x, logits = random(150, HIDDEN), random(150, EXPERTS, seed=1)
    routing = ROUTINGS["softmax"]
    whole = run(native, x, logits, routing, kind)
    for start, stop in [(0, 1), (7, 8), (3, 40), (149, 150), (20, 149)]:
        assert np.array_equal(run(native, x[start:stop], logits[start:stop], routing, kind), whole[start:stop])


def test_rows_that_do_not_fit_into_memory_at_once_have_the_same_bits(native: Ops) -> None:
    """A turn has 8M floats: with these sizes some 900 rows."""
    wide, routing = 9000, Routing(1)
    weights = ExpertWeights(tuple(native.pack([random(8, wide, seed=e)]) for e in range(2)))
    x, logits = random(2000, wide), random(2000, 2, seed=1)
    whole = native.expert_inputs(x, logits, routing, weights, "gelu")
    for start in (0, 931, 1999):
        one = native.expert_inputs(x[start : start + 1], logits[start : start + 1], routing, weights, "gelu")
        assert np.array_equal(one[0], whole[start])


def test_ranks_parts_of_a_row_are_put_together(native: Ops) -> None:
    routing, widths = Routing(3), [10, 0, 26]
    h, logits = random(11, 3 * INNER), random(11, EXPERTS, seed=1)
    parts = np.split(h.reshape(11, 3, INNER), np.cumsum(widths)[:-1], axis=2)
    dealt = np.ascontiguousarray(np.concatenate([part.reshape(11, -1) for part in parts], axis=1))
    for ops in (native, ReferenceOps()):
        down = experts_of(ops, "float32", HIDDEN, INNER, 50, bias=False)
        whole = ops.expert_outputs(h, logits, routing, down, [INNER])
        assert np.array_equal(ops.expert_outputs(dealt, logits, routing, down, widths), whole)


def test_equal_scores_go_to_the_lower_number_and_nan_harms_its_row_alone(native: Ops) -> None:
    x, logits = random(4, HIDDEN), random(4, EXPERTS, seed=1)
    logits[1] = 0.5
    logits[2, 3] = np.nan
    choices, _ = route(logits[:2], Routing(3))
    assert choices[1].tolist() == [0, 1, 2]
    for ops in (native, ReferenceOps()):
        result = run(ops, x, logits, Routing(3))
        assert np.isnan(result[2]).all() and np.isfinite(np.delete(result, 2, axis=0)).all()
    np.testing.assert_allclose(
        run(native, x, logits, Routing(3))[1], run(ReferenceOps(), x, logits, Routing(3))[1], rtol=1e-4, atol=1e-5
    )


def test_sigmoids_that_are_all_nothing_weigh_nothing(native: Ops) -> None:
    routing = Routing(2, "sigmoid", renormalize=True)
    for ops in (native, ReferenceOps()):
        with np.errstate(over="ignore"):
            assert not run(ops, random(2, HIDDEN), np.full((2, EXPERTS), -500, np.float32), routing).any()


def test_arguments_that_do_not_fit_are_refused(native: Ops) -> None:
    x, logits, routing = random(3, HIDDEN), random(3, EXPERTS), Routing(2)
    for ops in (native, ReferenceOps()):
        gate_up = experts_of(ops, "float32", 2 * INNER, HIDDEN, 10, bias=False)
        down = experts_of(ops, "float32", HIDDEN, INNER, 50, bias=False)
        h = random(3, 2 * INNER)
        for wrong in (0, EXPERTS + 1):
            with pytest.raises(ValueError, match="top_k"):
                ops.expert_inputs(x, logits, dataclasses.replace(routing, top_k=wrong), gate_up, "silu")
        with pytest.raises(ValueError, match="logits"):
            ops.expert_inputs(x, logits[:, 1:], routing, gate_up, "silu")
        with pytest.raises(ValueError, match="logits"):
            ops.expert_inputs(x, logits[1:], routing, gate_up, "silu")
        with pytest.raises(ValueError, match="x "):
            ops.expert_inputs(x[:, 1:], logits, routing, gate_up, "silu")
        with pytest.raises(ValueError, match="h "):
            ops.expert_outputs(h[:, 1:], logits, routing, down, [INNER])
        with pytest.raises(ValueError, match="h "):
            ops.expert_outputs(h, logits, routing, down, [INNER - 1])
    with pytest.raises(ValueError, match="None"):
        native.expert_inputs(x, logits[:, :1], Routing(1), ExpertWeights((None,)), "silu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one shape"):
        mixed = (native.pack([x]), native.pack([x[1:]]))
        native.expert_inputs(x, logits[:, :2], routing, ExpertWeights(mixed), "silu")
    with pytest.raises(ValueError, match="bias"):
        with_bias = dataclasses.replace(
            experts_of(native, "float32", 2 * INNER, HIDDEN, 10, bias=False), bias=random(EXPERTS, 3)
        )
        native.expert_inputs(x, logits, routing, with_bias, "silu")
    with pytest.raises(ValueError, match="routing bias"):
        native.expert_inputs(x, logits, Routing(2, bias=random(3)), gate_up_of(native), "silu")


def gate_up_of(ops: Ops) -> ExpertWeights:
    return experts_of(ops, "float32", 2 * INNER, HIDDEN, 10, bias=False)
