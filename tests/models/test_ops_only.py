"""A forward is a list of op calls on arrays and views of them: what a recording of it relies on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, PreTrainedModel

from octavo.ops.reference import ReferenceOps
from tests.models.harness import TINY, PagedRun, build, random_model
from tests.models.test_architectures import CONFIGS


class Activation(np.ndarray[Any, Any]):
    """An op's output: slices and reshapes are views; any arithmetic or copy outside of an op is an error."""

    inside_op = False

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return self._computed(getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._computed(func, args, kwargs)

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        view = super().reshape(*shape, **kwargs)
        assert np.may_share_memory(view.view(np.ndarray), self.view(np.ndarray)), "a reshape that copies"
        return view

    def copy(self, *args: Any) -> Any:
        raise AssertionError("a copy outside of an op")

    astype = __copy__ = __deepcopy__ = copy

    @staticmethod
    def _computed(function: Any, args: Any, kwargs: Any) -> Any:
        if not Activation.inside_op:
            raise AssertionError(f"{function} outside of an op")
        return function(*(_plain(arg) for arg in args), **kwargs)


class RecordingOps:
    """Passes every op on to the reference and keeps its name."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._ops = ReferenceOps()

    def __getattr__(self, name: str) -> Any:
        def op(*args: Any) -> Any:
            self.calls.append(name)
            with _inside():
                result = getattr(self._ops, name)(*(_plain(arg) for arg in args))
            if isinstance(result, tuple):
                return tuple(_guarded(part) for part in result)
            return _guarded(result)

        return op


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Activation) else value


def _guarded(value: Any) -> Any:
    return value.view(Activation) if isinstance(value, np.ndarray) else value


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    Activation.inside_op = True
    try:
        yield
    finally:
        Activation.inside_op = False


def run_recorded(model: PreTrainedModel) -> RecordingOps:
    ours = build(model, ReferenceOps())
    ops = RecordingOps()
    run = PagedRun(ours, ops)  # type: ignore[arg-type]
    run.step({"row": [1, 2, 3]})
    ops.calls.clear()
    run.step({"row": [4], "other row": [5, 6]})
    return ops


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_computed_outside_of_ops(name: str) -> None:
    calls = run_recorded(random_model(CONFIGS[name]())).calls
    assert calls.count("paged_attention") == calls.count("store_kv") + calls.count("rope_and_store") > 0


def test_the_guard_sees_arithmetic_and_copies() -> None:
    x = RecordingOps().add(np.ones((2, 6), np.float32), np.ones((2, 6), np.float32))
    assert x[:, :2].reshape(2, 1, 2).shape == (2, 1, 2)
    for compute in (lambda: x + x, lambda: x * 2, lambda: np.concatenate([x, x]), lambda: x.copy(), lambda: x.sum()):
        with pytest.raises(AssertionError):
            compute()
    with pytest.raises(AssertionError, match="copies"):
        x[:, :2].reshape(4)


def test_a_llama_layer_is_nine_op_calls() -> None:
    calls = run_recorded(random_model(LlamaConfig(**{**TINY, "num_hidden_layers": 2}))).calls
    layer = [
        "linear",
        "rope_and_store",
        "paged_attention",
        "linear",
        "add_rms_norm",
        "linear",
        "act_and_mul",
        "linear",
    ]
    assert calls == ["embedding", "rms_norm", *layer, "add_rms_norm", *layer, "add_rms_norm", "linear"]
