"""PEFT's adapter folders: adapter_config.json and adapter_model.safetensors -> pairs of thin matrices by module.

Formulas (LoRA, arXiv 2106.09685; rsLoRA, arXiv 2312.03732): y = W x + s * B (A x), with A [r, I], B [O, r] and
s = alpha / r, or alpha / sqrt(r) with use_rslora. Rank and alpha may differ by module (rank_pattern, alpha_pattern).
What changes the formula otherwise is refused by name: an adapter that is half applied gives silently wrong text.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.config.lora import LoRADtype
from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedError
from octavo.loader.compact import HalfMatrix, QuantizedMatrix
from octavo.loader.local_files import read_json_object
from octavo.loader.safetensors_weights import SafetensorsFile, SafetensorsTensor
from octavo.ops.interface import DOWN_GROUP, UP_GROUP, Float, LowRank

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_ROOT = "base_model.model."
_TENSOR = re.compile(re.escape(_ROOT) + r"(?P<module>.+)\.lora_(embedding_)?(?P<side>[AB])(\.default)?(\.weight)?")
_LAYER = re.compile(r"\.(\d+)\.")
# the model's own embedding, which PEFT saves beside an adapter of it
_FROZEN = re.compile(re.escape(_ROOT) + r"(?P<module>.+)\.base_layer\.weight")
# PEFT's further keys: when set to anything but these, the formula is another one or more than linear layers change
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "bias": ("none", None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "ensure_weight_tying": (False, None),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    # the others change the model's own weights before training
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


def adapter_identity(folder: Path) -> str:
    """Return a hash of the adapter's content: its name, number and place do not matter.

    Raises ModelNotFoundError for a folder without an adapter.
    """
    digest = hashlib.sha256(b"octavo.adapter.1")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        try:
            with open(folder / name, "rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                digest.update(size.to_bytes(8, "little"))
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise ModelNotFoundError(
                f"no LoRA adapter at {folder}: cannot read {name} ({error.strerror}); expected a folder with "
                f"{CONFIG_FILE} and {WEIGHTS_FILE}, as PEFT writes it"
            ) from None
    return digest.hexdigest()


Shapes = Mapping[str, tuple[int, int]]  # outputs and inputs by the name of the module in the model


@dataclass(frozen=True)
class _StoredPair:
    down: SafetensorsTensor  # [rank, I]
    up: SafetensorsTensor  # [O, rank]
    scale: float


def read_adapter(folder: Path, max_rank: int, dtypes: Callable[[str], LoRADtype]) -> dict[str, LowRank]:
    """Return the adapter's pairs by the name of the module in the model.

    dtypes: what a module's pair is rounded to or widened to; auto: of the file, or float32 where its tensors differ

    Raises CheckpointError and UnsupportedError, which name what is wrong.
    """
    pairs = _find_pairs(folder, max_rank)
    stored = {tensor.dtype for pair in pairs.values() for tensor in (pair.down, pair.up)}
    file_dtype: LoRADtype = "float16" if stored == {"F16"} else "bfloat16" if stored == {"BF16"} else "float32"
    wanted = {module: dtypes(module) for module in pairs}
    return {
        module: _read(pair, file_dtype if wanted[module] == "auto" else wanted[module])
        for module, pair in pairs.items()
    }


def adapter_shapes(folder: Path, max_rank: int) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the modules that an adapter changes; reads no matrix. Raises as `read_adapter`."""
    pairs = _find_pairs(folder, max_rank)
    return {module: (pair.up.shape[0], pair.down.shape[1]) for module, pair in pairs.items()}


def check_fits(folder: Path, adapter: Shapes, model: Shapes) -> None:
    """Raise CheckpointError for an adapter that is another model's."""
    unknown = [module for module in adapter if module not in model]
    if unknown:
        kinds = sorted({module.rsplit(".", 1)[-1] for module in model})
        layers = sorted({int(number) for module in model for number in _LAYER.findall(module)})
        raise CheckpointError(
            f"{folder}: {len(unknown)} of {len(adapter)} modules of the adapter are none of this model's layers that "
            f"can have one: {listed(unknown)}; these can: {', '.join(kinds)}, such as {min(model)}, in "
            f"layers {layers[0]} to {layers[-1]}"
        )
    for module, got in adapter.items():
        expected = model[module]
        if got != expected:
            raise CheckpointError(
                f"{folder}: the adapter's {module} has {got[1]} inputs and {got[0]} outputs, the model's "
                f"{expected[1]} and {expected[0]}; the adapter is another model's"
            )


def listed(names: list[str]) -> str:
    """Return the first names, and how many there are beside."""
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise UnsupportedError(f"{path}: peft_type {config.get('peft_type')!r} is not supported; expected 'LORA'")
    for name, neutral in _NEUTRAL.items():
        value = config.get(name, neutral[0])
        if not any(type(value) is type(accepted) and value == accepted for accepted in neutral):
            raise UnsupportedError(f"{path}: {name}={value!r} is not supported; adapters need {name}={neutral[0]!r}")


def _find_pairs(folder: Path, max_rank: int) -> dict[str, _StoredPair]:
    config_path = folder / CONFIG_FILE
    config = read_json_object(config_path)
    _check_config(config, config_path)
    sides: dict[str, dict[str, SafetensorsTensor]] = {}
    frozen: dict[str, str] = {}
    unmatched = []
    tensors = SafetensorsFile(folder / WEIGHTS_FILE).tensors
    for name, tensor in tensors.items():
        if match := _TENSOR.fullmatch(name):
            sides.setdefault(match["module"], {})[match["side"]] = tensor
        elif match := _FROZEN.fullmatch(name):
            frozen[name] = match["module"]
        else:
            unmatched.append(name)
    unmatched += [name for name, module in frozen.items() if module not in sides]
    if unmatched:
        raise CheckpointError(
            f"{folder}: tensors that are no LoRA pair of a linear layer or an embedding: {listed(unmatched)}; expected "
            f"{_ROOT}<module>.lora_A.weight and .lora_B.weight"
        )
    if not sides:
        raise CheckpointError(f"{folder}: {WEIGHTS_FILE} has no tensors")
    return {module: _pair(module, pair, config, max_rank, config_path) for module, pair in sides.items()}


def _pair(
    module: str,
    sides: Mapping[str, SafetensorsTensor],
    config: Mapping[str, Any],
    max_rank: int,
    path: Path,
) -> _StoredPair:
    if len(sides) != 2:
        raise CheckpointError(f"{path.parent}: {module} has only lora_{min(sides)}; expected lora_A and lora_B")
    rank, scale = _rank_and_scale(module, config, path)
    down, up = sides["A"], sides["B"]
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != rank or up.shape[1] != rank:
        raise CheckpointError(
            f"{path.parent}: {module} has lora_A {list(down.shape)} and lora_B {list(up.shape)}; {CONFIG_FILE} says "
            f"rank {rank}"
        )
    if rank > max_rank:
        raise UnsupportedError(
            f"{path.parent}: {module} has rank {rank}, but max_lora_rank={max_rank}; start the engine with "
            f"max_lora_rank={rank}"
        )
    return _StoredPair(down, up, scale)


def _read(pair: _StoredPair, dtype: LoRADtype) -> LowRank:
    if dtype == "int8":
        (first, down_scale), (second, up_scale) = _coded(pair.down, DOWN_GROUP), _coded(pair.up, UP_GROUP)
        return LowRank(first, second, pair.scale * down_scale * up_scale)
    return LowRank(_matrix(pair.down, dtype), _matrix(pair.up, dtype), pair.scale)


def _coded(tensor: SafetensorsTensor, group_size: int) -> tuple[QuantizedMatrix, float]:
    """Return the matrix divided by a power of two, in 8 bits, and that power."""
    values = tensor.float32()
    largest = float(np.abs(values).max())
    if not math.isfinite(largest):
        raise CheckpointError(f"{tensor.file.path}: {tensor.name} has numbers that are not finite")
    factor = 2.0 ** math.frexp(largest)[1]
    return QuantizedMatrix.rounded(values / np.float32(factor), group_size), factor


def _matrix(tensor: SafetensorsTensor, dtype: LoRADtype) -> Float | HalfMatrix:
    """Return a copy: the file may be written anew."""
    stored = tensor.compact()
    if isinstance(stored, HalfMatrix) and stored.kind == dtype:
        return HalfMatrix(stored.kind, np.array(stored.bits))
    values = np.array(tensor.float32())
    if dtype not in ("float16", "bfloat16"):
        return values
    rounded = HalfMatrix.rounded(dtype, values)
    if not np.isfinite(rounded.dequantized()).all():
        raise UnsupportedError(
            f"{tensor.file.path}: {tensor.name} has numbers that {dtype} cannot hold; use lora_dtype='bfloat16' or "
            "'float32'"
        )
    return rounded


def _rank_and_scale(module: str, config: Mapping[str, Any], path: Path) -> tuple[int, float]:
    rank = _by_pattern(module, config, "rank_pattern", config.get("r"), path)
    alpha = _by_pattern(module, config, "alpha_pattern", config.get("lora_alpha"), path)
    if type(rank) is not int or rank < 1:
        raise CheckpointError(f"{path}: r must be an integer of at least 1, got {rank!r}")
    if type(alpha) not in (int, float) or not abs(alpha) <= sys.float_info.max:
        raise CheckpointError(f"{path}: lora_alpha must be a number, got {alpha!r}")
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") is True else rank)


def _by_pattern(module: str, config: Mapping[str, Any], name: str, default: Any, path: Path) -> Any:
    """Return what the first pattern says that matches the module's name or its end, as PEFT looks them up."""
    patterns = config.get(name) or {}
    try:
        return next((value for one, value in patterns.items() if re.match(rf"(.*\.)?({one})$", module)), default)
    except (AttributeError, re.error) as error:
        raise CheckpointError(f"{path}: {name} must map regular expressions, got {patterns!r}: {error}") from None
