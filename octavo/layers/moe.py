"""Mixtures of experts: MLPs of which every token uses a few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.distributed.group import Group
from octavo.layers.linear import Linear
from octavo.layers.mlp import MLP
from octavo.ops.interface import Activation, ExpertWeights, Float, Ops, Routing


@dataclass(frozen=True, slots=True)
class Experts:
    """The sum of the chosen experts' down(act(gate(x)) * up(x)), each times its weight.

    Ranks share every expert: each has some of its inner features, and computes some of its output features.

    inputs: gate and up stacked
    in_widths, out_widths: how many inner, and output, features each rank has
    """

    router: Linear
    routing: Routing
    inputs: ExpertWeights
    outputs: ExpertWeights
    activation: Activation
    in_widths: Sequence[int]
    out_widths: Sequence[int]
    group: Group

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, H] -> [T, H]."""
        logits = self.router(x, ops)
        hidden = ops.expert_inputs(x, logits, self.routing, self.inputs, self.activation)
        if self.group.size > 1:
            hidden = ops.all_gather(hidden, self.group, [self.routing.top_k * width for width in self.in_widths])
        out = ops.expert_outputs(hidden, logits, self.routing, self.outputs, self.in_widths)
        return out if self.group.size == 1 else ops.all_gather(out, self.group, self.out_widths)


@dataclass(frozen=True, slots=True)
class MoE:
    """Experts that tokens choose, and one that all of them go to."""

    experts: Experts
    shared: MLP | Experts

    def __call__(self, x: Float, ops: Ops) -> Float:
        """x: [T, H] -> [T, H]."""
        return ops.add(self.experts(x, ops), self.shared(x, ops))


FeedForward = MLP | Experts | MoE
