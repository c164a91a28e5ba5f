"""A model bound to its caches: what a step calls, op by op or from the tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.attention.context import ForwardContext
from octavo.layers.adapted import AdapterRows
from octavo.models.interface import CausalLM
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs, ModelFunctions, TapeLimits, adapter_slots, slots_or_none


class LogitsFunction(Protocol):
    """Hidden states [R, H] and, with adapters, their slots [R] (None: no row has one) -> logits [R, V]."""

    def __call__(self, hidden: Float, slots: Int | None = None) -> Float: ...


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Hidden states [R, H] whose logits are wanted, and their adapters' slots [R], if rows may have any."""

    hidden: Float
    slots: Int | None

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> WantedRows:
        return WantedRows(self.hidden[rows], None if self.slots is None else self.slots[rows])


@dataclass(frozen=True)
class BoundModel:
    """The model's two computations. What they return is valid until the next call of the same one.

    logits: not to be called where the model has none, as in a pipeline's earlier stages; eager_logits: the same for any
        number of rows
    tape_bytes: memory of the largest step where the model is recorded; None where it runs op by op
    """

    forward: Callable[[ForwardInputs], Float]
    logits: LogitsFunction
    eager_logits: LogitsFunction
    tape_bytes: int | None


def bind_model(
    model: CausalLM,
    ops: Ops,
    kv_caches: Mapping[str, KVCache],
    layer_groups: Sequence[Sequence[str]],
    limits: TapeLimits | None,
    gives_logits: bool = True,
    adapter_rows: AdapterRows | None = None,
    taps: tuple[int, ...] = (),
) -> BoundModel:
    """Bind the model to its caches; with `limits` record it, where the backend can.

    layer_groups: names of the layers of each KV cache group; one without names where there is no cache
    adapter_rows: of a model with room for adapters
    taps: see ForwardContext; what is tapped goes into the inputs' `tapped`
    """

    def forward(ops: Ops, inputs: ForwardInputs) -> Float:
        metadata = {
            name: group_metadata
            for layer_names, group_metadata in zip(layer_groups, inputs.metadata, strict=True)
            for name in layer_names
        }
        if adapter_rows is not None:
            adapter_rows.tokens, adapter_rows.outputs = adapter_slots(inputs)
        query_start = inputs.metadata[0].query_start
        context = ForwardContext(
            ops, kv_caches, metadata, inputs.output_rows, query_start, inputs.hidden, taps, inputs.tapped
        )
        return model.forward(inputs.token_ids, inputs.positions, context)

    def logits(ops: Ops, hidden: Float, slots: Int | None) -> Float:
        if adapter_rows is not None and slots is not None:
            adapter_rows.logits = slots
        return model.compute_logits(hidden, ops)

    def eager_logits(hidden: Float, slots: Int | None = None) -> Float:
        return logits(ops, hidden, slots_or_none(slots, hidden))

    functions = ModelFunctions(forward, logits if gives_logits else None)
    tape = None if limits is None else ops.capture(functions, limits)
    if tape is not None:
        return BoundModel(tape.forward, tape.logits, eager_logits, tape.num_bytes)
    return BoundModel(lambda inputs: forward(ops, inputs), eager_logits, eager_logits, None)
