"""GGUF metadata of mixtures of experts -> config.json. Sizes are those of the tensors, which every file has."""

from __future__ import annotations

from typing import Any

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.gguf_file import GGUFFile

_SIGMOID = 2  # of llama.cpp's expert_gating_func


def expert_values(file: GGUFFile, normalizes: bool) -> dict[str, Any]:
    """Return number and size of the experts. normalizes: what llama.cpp does where the file says nothing"""
    name = file.architecture
    norm = file.get(f"{name}.expert_weights_norm", bool)
    return {
        "num_experts": file.require(f"{name}.expert_count", int),
        "num_experts_per_tok": file.require(f"{name}.expert_used_count", int),
        "moe_intermediate_size": _width(file, "ffn_down_exps"),
        "norm_topk_prob": normalizes if norm is None else norm,
    }


def shared_expert_size(file: GGUFFile) -> int:
    """Return the inner features of the expert that all tokens go to; 0: there is none."""
    return _width(file, "ffn_down_shexp") if _find(file, "ffn_down_shexp") else 0


def sigmoid_expert_values(file: GGUFFile) -> dict[str, Any]:
    """Return what GLM 4.5 and dots.llm1 have beside. Raises UnsupportedError for another way to choose experts."""
    name = file.architecture
    if file.get(f"{name}.expert_gating_func", int) not in (_SIGMOID, None):
        raise UnsupportedError(f"{file.path}: experts of {name} that are chosen otherwise than by sigmoids")
    values = expert_values(file, normalizes=False)
    scale = file.get(f"{name}.expert_weights_scale", float)
    return {
        **values,
        "n_shared_experts": shared_expert_size(file) // values["moe_intermediate_size"],
        "routed_scaling_factor": 1.0 if scale is None else scale,
        "n_group": file.get(f"{name}.expert_group_count", int) or 1,
        "first_k_dense_replace": file.get(f"{name}.leading_dense_block_count", int) or 0,
    }


def _width(file: GGUFFile, stem: str) -> int:
    """Return the input features of a projection."""
    tensor = _find(file, stem)
    if tensor is None:
        raise CheckpointError(f"{file.path} has no tensor {stem!r} in any layer, which this model needs")
    return file.tensors[tensor].shape[-1]


def _find(file: GGUFFile, stem: str) -> str | None:
    return next((name for name in file.tensors if name.endswith(f".{stem}.weight")), None)
