"""A GGUF file's rotary embedding parameters in the form of a config.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.gguf_file import GGUFFile

_DEFAULT_THETA = 10_000.0  # what llama.cpp takes when the key is absent


def rope_values(file: GGUFFile, head_dim: int) -> dict[str, Any]:
    """Return rope_theta, rope_scaling (None for plain RoPE) and partial_rotary_factor."""
    prefix = f"{file.architecture}.rope."
    theta = file.get(f"{prefix}freq_base", float)
    num_rotary = file.get(f"{prefix}dimension_count", int)
    if num_rotary is None:
        num_rotary = head_dim
    if not 2 <= num_rotary <= head_dim or num_rotary % 2:
        raise CheckpointError(
            f"{file.path}: {prefix}dimension_count must be an even number from 2 to the head size {head_dim}, "
            f"got {num_rotary}"
        )
    return {
        "rope_theta": _DEFAULT_THETA if theta is None else theta,
        "rope_scaling": _scaling(file, prefix, num_rotary),
        "partial_rotary_factor": num_rotary / head_dim,
    }


def _scaling(file: GGUFFile, prefix: str, num_rotary: int) -> dict[str, Any] | None:
    short_factors = _factors(file, "rope_factors_short.weight", num_rotary)
    long_factors = _factors(file, "rope_factors_long.weight", num_rotary)
    frequency_factors = _factors(file, "rope_freqs.weight", num_rotary)
    if short_factors is not None and long_factors is not None:
        return _longrope(file, prefix, short_factors, long_factors)
    if frequency_factors is not None:
        # Llama 3.1's scaling, already worked out per frequency: the same as longrope with one set of factors.
        return {
            "rope_type": "longrope",
            "short_factor": frequency_factors,
            "long_factor": frequency_factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": file.require(f"{file.architecture}.context_length", int),
        }
    return _scaling_by_type(file, prefix)


def _scaling_by_type(file: GGUFFile, prefix: str) -> dict[str, Any] | None:
    kind = file.get(f"{prefix}scaling.type", str)
    factor = file.get(f"{prefix}scaling.factor", float)
    if kind is None:  # older files give only a linear scale
        factor = file.get(f"{prefix}scale_linear", float) if factor is None else factor
        kind = "none" if factor in (None, 0.0, 1.0) else "linear"
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(
            f"{file.path}: {prefix}scaling.type is {kind!r}; supported: none, linear, yarn, longrope"
        )
    if factor is None or not factor > 0:
        raise CheckpointError(f"{file.path}: {kind} RoPE scaling needs a positive {prefix}scaling.factor, got {factor}")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    values = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": file.get(f"{prefix}scaling.original_context_length", int),
        "attention_factor": file.get(f"{prefix}scaling.yarn_attn_factor", float),
        "beta_fast": file.get(f"{prefix}scaling.yarn_beta_fast", float),
        "beta_slow": file.get(f"{prefix}scaling.yarn_beta_slow", float),
    }
    return {key: value for key, value in values.items() if value is not None}


def _longrope(file: GGUFFile, prefix: str, short_factors: list[float], long_factors: list[float]) -> dict[str, Any]:
    attention_factor = file.get(f"{prefix}scaling.attn_factor", float)
    return {
        "rope_type": "longrope",
        "short_factor": short_factors,
        "long_factor": long_factors,
        "attention_factor": 1.0 if attention_factor is None else attention_factor,
        "original_max_position_embeddings": file.require(f"{prefix}scaling.original_context_length", int),
    }


def _factors(file: GGUFFile, name: str, num_rotary: int) -> list[float] | None:
    """Read a tensor of one divisor per rotary frequency, or return None when the file has none."""
    info = file.tensors.get(name)
    if info is None:
        return None
    if info.type.name != "F32" or info.shape != (num_rotary // 2,):
        raise CheckpointError(
            f"{file.path}: tensor {name!r} must be F32 [{num_rotary // 2}], got {info.type.name} {list(info.shape)}"
        )
    values = np.frombuffer(file.tensor_bytes(info).tobytes(), dtype="<f4")
    if not np.all(np.isfinite(values) & (values > 0)):
        raise CheckpointError(f"{file.path}: tensor {name!r} must hold positive factors")
    return [float(value) for value in values]
