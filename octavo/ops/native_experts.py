"""How the native ops are told of a mixture of experts, called or recorded."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.ops.interface import ExpertWeights, Float, Routing, Weight

RoutingValues = tuple[int, bool, bool, float, Float | None]


def expert_arguments(routing: Routing, experts: ExpertWeights) -> tuple[RoutingValues, Sequence[Weight], Float | None]:
    """Return routing, weights and bias as csrc/experts.h reads them."""
    values = (routing.top_k, routing.scores == "sigmoid", routing.renormalize, routing.scale, routing.bias)
    return values, experts.weights, experts.bias
