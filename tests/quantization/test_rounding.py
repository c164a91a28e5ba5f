"""Rounding float matrices while they load: errors within the formats' steps, and engines that run on the result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.loader.compact import BlockMatrix, HalfMatrix, QuantizedMatrix
from octavo.quantization.rounding import quantize_int4, quantize_int8
from octavo.quantization.wrappers import ConvertedWeights, exact, quantized
from tests.models.harness import ArrayWeights
from tests.tiny_models import llama_config, write_tiny_model


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, 31, 32, 100, 4096])
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 1e4])
def test_int8_is_within_half_a_step_of_every_weight(size: int, magnitude: float) -> None:
    values = random(300, size) * np.float32(magnitude)
    values[5] = 0
    matrix = quantize_int8(values)
    assert (matrix.bits, matrix.group_size, matrix.codes.dtype, matrix.scales.dtype) == (8, 32, np.int8, np.float16)
    assert matrix.codes.min() >= -127
    step = matrix.scales.astype(np.float32)[:, np.arange(size) // 32]
    assert (np.abs(matrix.dequantized() - values) <= 0.5001 * step).all()
    assert (matrix.dequantized()[5] == 0).all()
    largest = np.abs(values[:, : min(size, 32)]).max(axis=1)
    assert (step[:, 0] <= largest / 127 * 1.002 + 6e-8).all(), "the step is no coarser than it must be"


def test_int4_beats_rounding_between_the_ends_of_each_group() -> None:
    values = random(200, 512) ** 3  # heavy tails
    matrix = quantize_int4(values)
    assert (matrix.bits, matrix.codes.dtype, matrix.codes.max()) == (4, np.uint8, 15)
    groups = values.reshape(200, -1, 32)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    plain = np.rint((groups - low) / (high - low) * 15) / 15 * (high - low) + low
    plain_error = np.square(plain - groups).sum(axis=-1)
    error = np.square(matrix.dequantized().reshape(groups.shape) - groups).sum(axis=-1)
    assert (error <= plain_error * 1.1).all() and error.sum() < 0.9 * plain_error.sum()


def test_int4_keeps_constant_groups_and_falls_back_to_8_bits_for_odd_rows() -> None:
    values = np.full((3, 64), 0.25, np.float32)
    np.testing.assert_array_equal(quantize_int4(values).dequantized(), values)
    assert quantize_int4(random(4, 40)).bits == 8


def test_tables_get_8_bits_and_vectors_stay() -> None:
    tensors = {
        "model.embed_tokens.weight": random(40, 64),
        "lm_head.weight": random(40, 64),
        "model.layers.0.mlp.up_proj.weight": random(32, 64),
        "model.norm.weight": random(64),
    }
    weights = ConvertedWeights(ArrayWeights(tensors), partial(quantized, "int4"))
    bits = {name: getattr(weights.get(name, t.shape).compact(), "bits", None) for name, t in tensors.items()}
    assert list(bits.values()) == [8, 8, 4, None]
    assert weights.unused() == []


def test_transposed_matrices_are_grouped_along_their_inputs() -> None:
    values = random(64, 40)  # [in, out]
    weights = ConvertedWeights(ArrayWeights({"c_fc.weight": values}), partial(quantized, "int8"))
    tensor = weights.get("c_fc.weight", (64, 40))
    matrix = tensor.compact(transposed=True)
    assert isinstance(matrix, QuantizedMatrix)
    np.testing.assert_array_equal(matrix.dequantized(), quantize_int8(np.ascontiguousarray(values.T)).dequantized())


def test_exact_weights_dequantise_all_but_16_bit_numbers() -> None:
    class Stored:
        def __init__(self, matrix: object) -> None:
            self.matrix = matrix
            self.shape = (2, 32)

        def float32(self) -> np.ndarray:
            return np.zeros((2, 32), np.float32)

        def compact(self, transposed: bool = False) -> object:
            return self.matrix

    class Source(ArrayWeights):
        def get(self, name: str, shape: tuple[int, ...]) -> Stored:
            return stored[name]

    half = HalfMatrix("bfloat16", np.zeros((2, 32), np.uint16))
    blocks = BlockMatrix("Q8_0", np.zeros((2, 34), np.uint8), 32)
    stored = {"half": Stored(half), "blocks": Stored(blocks), "none": Stored(None)}
    weights = ConvertedWeights(Source({}), exact)
    assert weights.get("half", (2, 32)).compact() is half
    np.testing.assert_array_equal(weights.get("blocks", (2, 32)).compact(), blocks.dequantized())
    assert weights.get("none", (2, 32)).compact() is None


# -- engines -----------------------------------------------------------------------------------------------------------


def logprobs_of(folder: Path, **options: str) -> list[float]:
    """Return the log-probabilities of a fixed prompt's tokens."""
    llm = LLM(str(folder), kv_cache_memory_bytes=2**23, **options)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    output = llm.generate({"prompt_token_ids": list(range(5, 60))}, params, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    tokens = list(range(5, 60))
    return [entry[t].logprob for t, entry in zip(tokens, output.prompt_logprobs, strict=True) if entry is not None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), llama_config(hidden_size=128, intermediate_size=192))


def test_fewer_bits_change_a_models_numbers_in_proportion(folder: Path) -> None:
    exact = logprobs_of(folder)

    def distance(**options: str) -> float:
        return float(np.abs(np.array(logprobs_of(folder, **options)) - exact).mean())

    int8_exact, int8 = distance(quantization="int8", compute="exact"), distance(quantization="int8")
    int4_exact, int4 = distance(quantization="int4", compute="exact"), distance(quantization="int4")
    assert 0 < int8_exact < int8 < 0.05
    assert int8 < int4_exact < 1 and int8 < int4 < 1


def test_bfloat16_checkpoints_compute_as_their_float32_copies(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    half, full = tmp_path / "half", tmp_path / "full"
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(folder / "model.safetensors").items()}
    for target, dtype in ((half, torch.bfloat16), (full, torch.float32)):
        target.mkdir()
        for file in folder.iterdir():
            if file.name != "model.safetensors":
                (target / file.name).write_bytes(file.read_bytes())
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, target / "model.safetensors")
    assert logprobs_of(half) == logprobs_of(full)
