"""Mixtures of experts in plain NumPy, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from octavo.ops.checks import check_array
from octavo.ops.interface import ExpertWeights, Float, Int, Routing, Weight

Linear = Callable[[Float, Weight, Float | None], Float]


def route(logits: Float, routing: Routing) -> tuple[Int, Float]:
    """Return each row's experts, best first, and their weights: logits [T, E] -> both [T, top_k]."""
    num_experts = logits.shape[1]
    if not 1 <= routing.top_k <= num_experts:
        raise ValueError(f"top_k must be in 1..{num_experts}, got {routing.top_k}")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if routing.scores == "sigmoid":
            scores = 1 / (1 + np.exp(-logits))
        else:
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        ranked = scores if routing.bias is None else scores + routing.bias
        experts = np.argsort(-ranked, axis=1, kind="stable")[:, : routing.top_k].astype(np.int32)
        weights = np.take_along_axis(scores, experts, axis=1)
        if routing.renormalize:
            nothing = np.float32(1e-20 if routing.scores == "sigmoid" else 0)  # all sigmoids may be 0
            weights = weights / (weights.sum(axis=1, keepdims=True) + nothing)
    return experts, (weights * np.float32(routing.scale)).astype(np.float32)


def chosen(linear: Linear, x: Float, choices: Int, experts: ExpertWeights) -> Float:
    """Return each row's product with the matrix of its expert: x [N, I], choices [N] -> [N, O]."""
    out = np.empty((len(x), experts.out_features), np.float32)
    for expert in np.unique(choices):
        rows = choices == expert
        out[rows] = linear(x[rows], experts.weights[expert], None if experts.bias is None else experts.bias[expert])
    return out


def in_order_of_choice(h: Float, top_k: int, widths: Sequence[int]) -> Float:
    """Return the ranks' features of each choice side by side: [T, top_k * I], rank by rank -> [T * top_k, I]."""
    check_array("h", h, (None, top_k * sum(widths)))
    borders = np.cumsum([top_k * width for width in widths])[:-1]
    parts = zip(np.split(h, borders, axis=1), widths, strict=True)
    return np.concatenate([part.reshape(len(h) * top_k, width) for part, width in parts], axis=1)
