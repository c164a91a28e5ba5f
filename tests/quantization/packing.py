"""Packs random codes the way that GPTQ, AWQ and compressed-tensors checkpoints hold them, one code after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Module:
    """Codes [out, in], scales and zero points [out, groups] of one module."""

    bits: int
    codes: NDArray[np.int64]
    scales: NDArray[np.float16]
    zeros: NDArray[np.int64]
    group_size: int

    def weight(self) -> NDArray[np.float32]:
        """Return scale * (code - zero), by its definition."""
        out = np.empty(self.codes.shape, np.float32)
        for row in range(out.shape[0]):
            for column in range(out.shape[1]):
                group = column // self.group_size
                difference = self.codes[row, column] - self.zeros[row, group]
                out[row, column] = np.float32(self.scales[row, group]) * np.float32(difference)
        return out


def random_module(
    rng: np.random.Generator, bits: int, out_features: int, in_features: int, group_size: int, symmetric: bool
) -> Module:
    num_groups = -(-in_features // group_size)
    middle = 1 << (bits - 1)
    shape = (out_features, num_groups)
    return Module(
        bits,
        rng.integers(0, 1 << bits, (out_features, in_features)),
        (rng.uniform(0.5, 2, shape) * 2.0 / (1 << bits) * in_features**-0.5).astype(np.float16),
        np.full(shape, middle) if symmetric else rng.integers(1, (1 << bits) - 1, shape),
        group_size,
    )


def pack_words(codes: NDArray[np.int64], bits: int, order: list[int] | None = None) -> NDArray[np.int32]:
    """Pack along the last axis, the lowest bits first; code order[j] goes to place j of its word."""
    per_word = 32 // bits
    missing = -codes.shape[1] % per_word
    codes = np.pad(codes, ((0, 0), (0, missing)))
    words = np.zeros((codes.shape[0], codes.shape[1] // per_word), np.uint64)
    for row in range(words.shape[0]):
        for word in range(words.shape[1]):
            for place in range(per_word):
                source = place if order is None else order[place]
                words[row, word] |= np.uint64(int(codes[row, word * per_word + source]) << (bits * place))
    return words.astype(np.uint32).view(np.int32)


def as_gptq(module: Module, version: int = 1) -> dict[str, NDArray[Any]]:
    groups = np.arange(module.codes.shape[1]) // module.group_size
    return {
        "qweight": np.ascontiguousarray(pack_words(module.codes, module.bits).T),
        "qzeros": pack_words(module.zeros.T - (1 if version == 1 else 0), module.bits),
        "scales": np.ascontiguousarray(module.scales.T),
        "g_idx": groups.astype(np.int32),
    }


def as_awq(module: Module) -> dict[str, NDArray[Any]]:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {
        "qweight": pack_words(module.codes.T, 4, order),
        "qzeros": pack_words(module.zeros.T, 4, order),
        "scales": np.ascontiguousarray(module.scales.T),
    }


def as_packed_ints(module: Module, symmetric: bool) -> dict[str, NDArray[Any]]:
    tensors = {
        "weight_packed": pack_words(module.codes, module.bits),
        "weight_scale": module.scales,
        "weight_shape": np.array(module.codes.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(pack_words(module.zeros.T, module.bits).T)
    return tensors


def as_ints(module: Module, symmetric: bool) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {
        "weight": (module.codes - 128).astype(np.int8),
        "weight_scale": module.scales.astype(np.float32),
    }
    if not symmetric:
        tensors["weight_zero_point"] = (module.zeros - 128).astype(np.int8)
    return tensors
