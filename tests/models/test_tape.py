"""The tape of every architecture against its ops one by one: the same bits, whatever the batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from transformers import LlamaConfig

from octavo.errors import UnsupportedError
from octavo.models.interface import CausalLM
from octavo.ops.interface import Float, Ops
from octavo.ops.select import native_facts
from octavo.ops.tape import ForwardInputs, ModelFunctions, TapeLimits
from octavo.worker.bound_model import bind_model
from tests.models.harness import TINY, PagedRun, TapedRun, build, random_chunks, random_model
from tests.models.test_architectures import CONFIGS

FACTS = native_facts()
pytestmark = pytest.mark.skipif(FACTS is None, reason="needs the native extension")


@pytest.fixture(params=FACTS.available_isas if FACTS else [])
def native(request: pytest.FixtureRequest) -> Iterator[Ops]:
    from octavo import _native
    from octavo.ops.native import NativeOps

    isa, num_threads = _native.isa(), _native.num_threads()
    _native.set_isa(request.param)
    _native.set_num_threads(2)
    yield NativeOps()
    _native.set_isa(isa)
    _native.set_num_threads(num_threads)


@pytest.mark.parametrize(
    ("name", "cache_dtype"),
    [(name, "float32") for name in CONFIGS]
    + [(name, dtype) for name in ("llama", "gemma2", "qwen3-sliding", "gpt2") for dtype in ("float16", "int8")],
)
def test_the_tape_gives_the_bits_of_the_ops_one_by_one(name: str, cache_dtype: str, native: Ops) -> None:
    model = build(random_model(CONFIGS[name]()), native)
    eager, taped = PagedRun(model, native, cache_dtype=cache_dtype), TapedRun(model, native, cache_dtype=cache_dtype)
    alone = {row: PagedRun(model, native, cache_dtype=cache_dtype) for row in "abc"}
    rng = np.random.default_rng(1)
    prompts = {row: rng.integers(0, 97, length).tolist() for row, length in (("a", 50), ("b", 3), ("c", 90))}
    pieces = {row: random_chunks(rng, len(prompt), 40) for row, prompt in prompts.items()}
    while any(pieces.values()):
        step = {}
        for row, sizes in pieces.items():
            if sizes:
                size = sizes.pop()
                step[row], prompts[row] = prompts[row][:size], prompts[row][size:]
        expected, got = eager.step(step), taped.step(step)
        for row in step:
            assert np.isfinite(got[row]).all()
            assert np.array_equal(got[row], expected[row])
            assert np.array_equal(got[row], alone[row].step({row: step[row]})[row])


def tiny_model(ops: Ops) -> CausalLM:
    return build(random_model(LlamaConfig(**TINY)), ops)


def test_only_the_wanted_rows_come_back_and_have_the_bits_of_all_rows(native: Ops) -> None:
    model = tiny_model(native)
    whole = PagedRun(model, native).run(list(range(30)))
    for run in (PagedRun(model, native), TapedRun(model, native)):
        compute = run.compute

        def some(token_ids, positions, metadata, run=run, compute=compute):
            rows = np.array([29, 4], np.int32)
            if not isinstance(run, TapedRun):
                return compute(token_ids, positions, metadata)[rows]
            inputs = ForwardInputs(token_ids, positions, rows, [metadata[name] for name in run.specs])
            hidden = run.bound.forward(inputs)
            assert hidden.shape == (2, 64)
            return run.bound.logits(hidden)

        run.compute = some
        assert np.array_equal(run.step({"row": list(range(30))})["row"], whole[[29, 4]])


def test_a_step_without_wanted_rows_still_stores_its_keys(native: Ops) -> None:
    model = tiny_model(native)
    taped = TapedRun(model, native)
    expected = PagedRun(model, native).run(list(range(30)))
    compute = taped.compute

    def nothing(token_ids, positions, metadata):
        inputs = ForwardInputs(token_ids, positions, np.zeros(0, np.int32), [metadata[name] for name in taped.specs])
        assert taped.bound.logits(taped.bound.forward(inputs)).shape == (0, 97)
        return np.zeros((len(token_ids), 97), np.float32)

    taped.compute = nothing
    taped.step({"row": list(range(20))})
    taped.compute = compute
    assert np.array_equal(taped.step({"row": list(range(20, 30))})["row"], expected[20:])


def test_arguments_that_do_not_fit_are_refused_before_anything_is_computed(native: Ops) -> None:
    model = tiny_model(native)
    run = TapedRun(model, native, max_tokens=16)

    def refuse(message: str, num_tokens: int = 4, **changes: object) -> None:
        caches = {name: cache.copy() for name, cache in run.caches.items()}
        captured = {}

        def compute(token_ids, positions, metadata):
            captured["inputs"] = ForwardInputs(
                token_ids, positions, np.array([0], np.int32), [metadata[name] for name in run.specs]
            )
            return np.zeros((len(token_ids), 97), np.float32)

        run.compute = compute
        run.sequences.clear()
        run.step({"row": list(range(num_tokens))})
        inputs = captured["inputs"]
        for name, value in changes.items():
            target = inputs if hasattr(inputs, name) else inputs.metadata[1]
            setattr(target, name, value)
        with pytest.raises(ValueError, match=message):
            run.bound.forward(inputs)
        for name, cache in run.caches.items():
            assert np.array_equal(cache, caches[name], equal_nan=True)

    refuse("ids must lie in 0..96, got 97", token_ids=np.array([1, 2, 97, 3], np.int32))
    refuse("positions must lie in 0..127, got 128", positions=np.array([0, 1, 2, 128], np.int32))
    refuse("rows must lie in 0..3, got 4", output_rows=np.array([4], np.int32))
    refuse("ids must be a int32 array", token_ids=np.array([1, 2, 3, 4], np.int64))
    refuse("slot_mapping must lie in", slot_mapping=np.array([1, 2, 3, 10**6], np.int64))
    refuse("slot_mapping must be a int64 array", slot_mapping=np.array([1], np.int64))
    refuse("seq_lens must lie between", seq_lens=np.array([3], np.int32))
    refuse("query_start must rise from 0 to 4", query_start=np.array([0, 3], np.int32))
    refuse("block_table must lie in 0..", block_table=np.array([[10**6]], np.int32))
    refuse("the tape's arena has", num_tokens=60)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ops, hidden, slots: hidden * 2, "unsupported operand"),
        (lambda ops, hidden, slots: np.tanh(hidden), "tanh|ufunc"),
        (lambda ops, hidden, slots: np.asarray(hidden), "cannot be read while it is recorded"),
        (lambda ops, hidden, slots: ops.add(hidden, np.ones((3, 64), np.float32)), "must come from an op"),
        (lambda ops, hidden, slots: ops.softcap(hidden.reshape(2, -1), 1.0), "a reshape from"),
        (lambda ops, hidden, slots: ops.softcap(hidden[0], 1.0), "an index of 0"),
        (lambda ops, hidden, slots: ops.softcap(hidden[:, ::2], 1.0), "an index of"),
        (lambda ops, hidden, slots: ops.softcap(hidden.T, 1.0), "has no attribute 'T'"),
        (lambda ops, hidden, slots: ops.log_softmax(hidden), "log_softmax cannot be recorded"),
        (lambda ops, hidden, slots: ops.act_and_mul(hidden[:, :3], "silu"), "even number of columns"),
        (lambda ops, hidden, slots: hidden.shape, "result of an op"),
    ],
)
def test_what_cannot_be_recorded_is_an_error_that_names_the_way_out(native: Ops, function, message: str) -> None:
    def forward(ops: Ops, inputs: ForwardInputs) -> Float:
        return ops.embedding(inputs.token_ids, table)

    table = native.pack([np.ones((8, 64), np.float32)])
    with pytest.raises(UnsupportedError, match=message) as caught:
        native.capture(ModelFunctions(forward, function), TapeLimits(8, 8, 8, 64, 0))
    assert "enforce_eager=True" in str(caught.value)


def test_tapped_layers_come_back_beside_the_result(native: Ops) -> None:
    """What enters layers 0 and 1 for every token, and what leaves the last for the wanted rows; the same both ways."""
    model = build(random_model(LlamaConfig(**{**TINY, "num_hidden_layers": 3})), native)
    seen = {}
    for name, limits in (("ops", None), ("tape", TapeLimits(64, 64, 64, 64, 3))):
        run = PagedRun(model, native)
        bound = bind_model(model, native, run.caches, [(layer,) for layer in run.specs], limits, taps=(0, 1, 3))

        def compute(token_ids, positions, metadata, run=run, bound=bound, name=name):
            rows = np.array([9, 4], np.int32)
            inputs = ForwardInputs(token_ids, positions, rows, [metadata[layer] for layer in run.specs])
            hidden = bound.forward(inputs)
            seen[name] = [hidden.copy(), *(array.copy() for array in inputs.tapped)]
            return hidden

        run.compute = compute
        run.step({"row": list(range(10))})
    for by_op, taped in zip(seen["ops"], seen["tape"], strict=True):
        assert np.array_equal(by_op, taped)
    hidden, embedded, entering, leaving = seen["tape"]
    assert np.array_equal(embedded, model.embedding(np.arange(10, dtype=np.int32), native))
    assert entering.shape == (10, 64) and not np.array_equal(entering, embedded)
    assert np.array_equal(model.final_norm(leaving, native), hidden)
