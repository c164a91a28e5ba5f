"""ALiBi: scores fall linearly with the distance, in place of positions (Press et al., arXiv:2108.12409)."""

from __future__ import annotations

import numpy as np

from octavo.ops.interface import Float


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> Float:
    """Return by how much each head's scores fall per token of distance, [num_heads].

    For a power of two n these are 2 ^ (-max_bias * i / n), i = 1 .. n. Other numbers take from the next power's every
    second one, then from the rest, as MPT and BLOOM were trained.
    """
    power = 1 << (num_heads - 1).bit_length()
    slopes = np.exp2(-max_bias / power * np.arange(1, power + 1))
    if power != num_heads:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[:num_heads]
    rounded: Float = slopes.astype(np.float32)
    return rounded
