"""What it means to record a model's computations once and replay them at every step.

A backend that can (`Ops.capture`) returns a `Tape`: on the CPU a list of calls replayed by the native side, elsewhere
it could be a device graph. Whoever replays cannot tell; results equal those of the ops called one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from octavo.ops.interface import AttentionMetadata, Float, Int

if TYPE_CHECKING:
    from octavo.ops.interface import Ops


@dataclass(slots=True)
class ForwardInputs:
    """What changes from step to step in a forward of T tokens of which R rows are wanted.

    token_ids, positions: [T] int32
    output_rows: [R] int32, the tokens whose hidden states are wanted
    metadata: one per KV cache group
    hidden: [T, H], what the stage before has computed; None where there is none
    tapped: filled by the forward: hidden states that it passes by and somebody reads, valid as long as its result
    adapter_slots: [T] int32, see `Ops.adapted_linear`; None: no row has an adapter; output_adapter_slots: [R], of those
    """

    token_ids: Int
    positions: Int
    output_rows: Int
    metadata: Sequence[AttentionMetadata]
    hidden: Float | None = None
    adapter_slots: Int | None = None
    output_adapter_slots: Int | None = None
    tapped: list[Float] = field(default_factory=list)


def adapter_slots(inputs: ForwardInputs) -> tuple[Int, Int]:
    """Return the slots of the tokens and of the wanted rows; all -1 where the step has none."""
    tokens = slots_or_none(inputs.adapter_slots, inputs.token_ids)
    return tokens, slots_or_none(inputs.output_adapter_slots, inputs.output_rows)


def slots_or_none(slots: Int | None, rows: Sized) -> Int:
    """Return the slots of rows, -1 for each where there are none."""
    return np.full(len(rows), -1, np.int32) if slots is None else slots


@dataclass(frozen=True)
class ModelFunctions:
    """The two computations of a model, over its caches.

    forward: hidden states [R, H] of the wanted rows
    logits: [R, V] of hidden states [R, H] and, with adapters, their slots [R]; None where another stage of a pipeline
        computes them
    Both call nothing but ops on their inputs, and views of them: reshape, and slices of the second axis.
    """

    forward: Callable[[Ops, ForwardInputs], Float]
    logits: Callable[[Ops, Float, Int | None], Float] | None


@dataclass(frozen=True)
class TapeLimits:
    """The largest step: tokens, rows of hidden states wanted, and rows of logits; and the number of KV cache groups.

    takes_hidden: steps come with ForwardInputs.hidden
    takes_adapters: steps may come with ForwardInputs.adapter_slots, and logits with slots
    """

    max_tokens: int
    max_output_rows: int
    max_logits_rows: int
    hidden_size: int
    num_groups: int
    takes_hidden: bool = False
    takes_adapters: bool = False


class Tape(Protocol):
    """A recorded model. What `forward` and `logits` return is valid until the next call of the same method."""

    @property
    def num_bytes(self) -> int:
        """Memory that the largest step takes."""

    def forward(self, inputs: ForwardInputs) -> Float: ...

    def logits(self, hidden: Float, slots: Int | None = None) -> Float:
        """slots: [R], where the tape takes adapters; None: no row has one."""
