"""Checkpoints whose experts are MXFP4: weights as the format defines them, and a whole gpt-oss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import GptOssConfig

from octavo.errors import CheckpointError
from octavo.loader.compact import BlockMatrix
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.quantization.mxfp4 import Mxfp4Weights
from tests.quantization.test_checkpoints import generate
from tests.tiny_models import llama_config, write_tiny_model

# OCP Microscaling Formats 1.0, E2M1
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def random_stack(rng: np.random.Generator, count: int, out: int, inner: int) -> dict[str, NDArray[np.uint8]]:
    blocks = rng.integers(0, 256, (count, out, inner // 32, 16), dtype=np.uint8)
    return {"blocks": blocks, "scales": rng.integers(120, 124, (count, out, inner // 32), dtype=np.uint8)}


def defined(stack: dict[str, NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Return the weights [count, in, out]: number 2i in the lower half of byte i, 2i + 1 in the upper."""
    blocks, scales = stack["blocks"], stack["scales"]
    numbers = np.stack([VALUES[blocks & 15], VALUES[blocks >> 4]], axis=-1).reshape(*scales.shape, 32)
    values = np.ldexp(numbers, scales[..., None].astype(np.int32) - 127)
    return values.reshape(*scales.shape[:2], -1).swapaxes(1, 2)


def test_weights_are_what_the_format_defines(tmp_path: Path) -> None:
    stack = random_stack(np.random.default_rng(0), 3, 10, 64)
    save_file({f"e.down_{name}": tensor for name, tensor in stack.items()}, tmp_path / "model.safetensors")
    source = Mxfp4Weights(SafetensorsWeights(tmp_path))
    assert source.has("e.down") and not source.has("e.up")
    for tensor, expected in zip(source.stack("e.down", (3, 64, 10)), defined(stack), strict=True):
        assert tensor.shape == (64, 10)
        np.testing.assert_array_equal(tensor.float32(), expected)
        matrix = tensor.compact(True)
        assert isinstance(matrix, BlockMatrix) and tensor.compact() is None
        np.testing.assert_array_equal(matrix.dequantized(), expected.T)
        odd = tensor.cut(range(1, 10, 2), True)
        assert odd.shape == (5, 64)
        np.testing.assert_array_equal(odd.float32(), expected.T[1::2])
        np.testing.assert_array_equal(odd.compact().dequantized(), expected.T[1::2])
        np.testing.assert_array_equal(odd.cut(range(2, 4)).float32(), expected.T[[5, 7]])
    assert source.unused() == []
    with pytest.raises(CheckpointError, match=r"e\.down_blocks.*\[3, 10, 2, 16\].*\[3, 10, 3, 16\]"):
        source.stack("e.down", (3, 80, 10))


def test_tensors_of_another_type_are_refused(tmp_path: Path) -> None:
    stack = random_stack(np.random.default_rng(0), 1, 2, 32)
    for part in stack:
        tensors = {f"e_{name}": tensor.astype(np.int32 if name == part else np.uint8) for name, tensor in stack.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"e_{part}.*must be U8.*I32"):
            Mxfp4Weights(SafetensorsWeights(tmp_path)).stack("e", (1, 32, 2))


def test_a_checkpoint_in_mxfp4_runs_like_its_float_twin(tmp_path: Path) -> None:
    sizes = {key: value for key, value in llama_config().to_dict().items() if key in GptOssConfig().to_dict()}
    sizes |= {"model_type": "gpt_oss", "architectures": None, "rope_parameters": None, "attention_bias": True}
    config = GptOssConfig(**sizes, num_local_experts=4, num_experts_per_tok=2, sliding_window=20)
    folder, twin = (write_tiny_model(tmp_path / name, config) for name in ("packed", "float"))
    rng = np.random.default_rng(1)
    packed, plain = load_file(folder / "model.safetensors"), load_file(twin / "model.safetensors")
    for name in [name for name in plain if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inner, out = packed.pop(name).shape
        stack = random_stack(rng, count, out, inner)
        packed |= {f"{name}_{part}": tensor for part, tensor in stack.items()}
        plain[name] = np.ascontiguousarray(defined(stack))
    save_file(packed, folder / "model.safetensors")
    save_file(plain, twin / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    values["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(values))
    exact = generate(folder, compute="exact")
    assert exact == generate(twin, compute="exact")
    assert generate(folder) != exact, "activations are rounded"
    assert generate(folder, quantization="mxfp4") == generate(folder), "vLLM's name for what the checkpoint is"
