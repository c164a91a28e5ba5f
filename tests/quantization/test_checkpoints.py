"""GPTQ, AWQ and compressed-tensors checkpoints: weights as their formats define them, and whole models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo import LLM, SamplingParams
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.loader.compact import QuantizedMatrix
from octavo.loader.hf_config import HFConfig
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.quantization.config_reading import read_layout
from octavo.quantization.packed_weights import PackedWeights
from tests.quantization.packing import as_awq, as_gptq, as_ints, as_packed_ints, random_module
from tests.tiny_models import llama_config, write_tiny_model


def compressed(fmt: str, bits: int, group_size: int, symmetric: bool) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group_size}
    if group_size == -1:
        weights |= {"strategy": "channel", "group_size": None}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": fmt, "config_groups": groups, "ignore": ["lm_head"]}


def gptq(bits: int, group_size: int, version: int = 1) -> dict[str, Any]:
    section = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": False, "sym": True}
    return section if version == 1 else {**section, "checkpoint_format": "gptq_v2"}


def awq(group_size: int) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": True, "version": "gemm"}


# name -> (quantization_config for a group size, packer of a module, bits, symmetric)
FORMATS: dict[str, tuple[Any, Any, int, bool]] = {
    "gptq-4": (lambda g: gptq(4, g), as_gptq, 4, True),
    "gptq-4-zeros": (lambda g: gptq(4, g), as_gptq, 4, False),
    "gptq-8": (lambda g: gptq(8, g), as_gptq, 8, True),
    "gptq-8-zeros": (lambda g: gptq(8, g), as_gptq, 8, False),
    "gptq-v2": (lambda g: gptq(4, g, 2), lambda m: as_gptq(m, 2), 4, False),
    "awq": (awq, as_awq, 4, False),
    "packed-4": (lambda g: compressed("pack-quantized", 4, g, True), lambda m: as_packed_ints(m, True), 4, True),
    "packed-4-zeros": (
        lambda g: compressed("pack-quantized", 4, g, False),
        lambda m: as_packed_ints(m, False),
        4,
        False,
    ),
    "packed-8": (lambda g: compressed("pack-quantized", 8, g, True), lambda m: as_packed_ints(m, True), 8, True),
    "ints": (lambda g: compressed("int-quantized", 8, g, True), lambda m: as_ints(m, True), 8, True),
    "ints-zeros": (lambda g: compressed("int-quantized", 8, g, False), lambda m: as_ints(m, False), 8, False),
}


def open_module(folder: Path, tensors: dict[str, Any], section: dict[str, Any]) -> PackedWeights:
    save_file({f"m.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    layout = read_layout(HFConfig({"quantization_config": section}))
    assert layout is not None
    return PackedWeights(SafetensorsWeights(folder), layout)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
def test_weights_are_what_the_format_defines(tmp_path: Path, name: str, group_size: int) -> None:
    section, pack, bits, symmetric = FORMATS[name]
    module = random_module(np.random.default_rng(0), bits, 24, 128, 128 if group_size == -1 else group_size, symmetric)
    weights = open_module(tmp_path, pack(module), section(group_size))
    assert weights.has("m.weight") and weights.unused() == ["m.weight"]
    tensor = weights.get("m.weight", (24, 128))
    expected = module.weight()
    assert tensor.shape == (24, 128)
    np.testing.assert_array_equal(tensor.float32(), expected)
    matrix = tensor.compact()
    assert isinstance(matrix, QuantizedMatrix) and matrix.bits == bits
    assert (matrix.minimums is None) == symmetric
    np.testing.assert_array_equal(matrix.dequantized(), expected)
    assert weights.unused() == []


@pytest.mark.parametrize("symmetric", [True, False])
def test_one_scale_a_row_whatever_its_length(tmp_path: Path, symmetric: bool) -> None:
    """Rows that do not fill groups of 32 stay in float32 where a zero point would give the missing weights a value."""
    module = random_module(np.random.default_rng(1), 8, 6, 40, 40, symmetric)
    weights = open_module(tmp_path, as_ints(module, symmetric), compressed("int-quantized", 8, -1, symmetric))
    tensor = weights.get("m.weight", (6, 40))
    np.testing.assert_array_equal(tensor.float32(), module.weight())
    matrix = tensor.compact()
    assert (matrix is not None) == symmetric
    if matrix is not None:
        np.testing.assert_array_equal(matrix.dequantized(), module.weight())


# -- whole models ------------------------------------------------------------------------------------------------------


def quantise_folder(folder: Path, name: str, group_size: int = 32) -> Path:
    """Replace the projections of a tiny model by random quantised ones; return a folder with the same in float32."""
    section, pack, bits, symmetric = FORMATS[name]
    rng = np.random.default_rng(3)
    tensors = load_file(folder / "model.safetensors")
    plain = dict(tensors)
    for key in [key for key in tensors if key.endswith("_proj.weight")]:
        module = random_module(rng, bits, *tensors[key].shape, group_size, symmetric)
        del tensors[key]
        tensors |= {f"{key.removesuffix('.weight')}.{suffix}": tensor for suffix, tensor in pack(module).items()}
        plain[key] = module.weight()
    twin = folder.with_name(folder.name + "-float")
    twin.mkdir()
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (twin / file.name).write_bytes(file.read_bytes())
    save_file(tensors, folder / "model.safetensors")
    save_file(plain, twin / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": section(group_size)}))
    return twin


def generate(folder: Path, **options: Any) -> list[tuple[list[int], list[float]]]:
    llm = LLM(str(folder), kv_cache_memory_bytes=2**23, **options)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": list(range(5, 5 + n))} for n in (3, 40)], params, use_tqdm=False)
    results = []
    for output in outputs:
        completion = output.outputs[0]
        assert completion.logprobs is not None
        results.append(
            (
                list(completion.token_ids),
                [entry[i].logprob for entry, i in zip(completion.logprobs, completion.token_ids, strict=True)],
            )
        )
    return results


@pytest.mark.parametrize("name", ["gptq-4", "awq", "packed-4-zeros", "ints"])
def test_a_quantised_checkpoint_runs_like_its_float_twin(tmp_path: Path, name: str) -> None:
    folder = write_tiny_model(tmp_path / "model", llama_config(hidden_size=64, intermediate_size=96))
    twin = quantise_folder(folder, name)
    exact = generate(folder, compute="exact")
    assert exact == generate(twin, compute="exact"), "dequantised, it is the same model to the bit"
    rounded = generate(folder)
    assert rounded != exact, "activations are rounded"
    for (_, logprobs), (_, expected) in zip(rounded, exact, strict=True):
        assert abs(logprobs[0] - expected[0]) < 0.2


def test_quantization_may_name_what_the_checkpoint_is(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", llama_config())
    quantise_folder(folder, "awq")
    assert generate(folder, quantization="awq") == generate(folder)
    with pytest.raises(ConfigError, match=r"quantization='gptq'.*awq"):
        generate(folder, quantization="gptq")
    with pytest.raises(ConfigError, match="quantised already"):
        generate(folder, quantization="int4")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"quant_method": "aqlm"}, "quant_method='aqlm' is not supported; supported are gptq"),
        (gptq(3, 32), "bits=3"),
        ({**gptq(4, 32), "checkpoint_format": "marlin"}, "marlin"),
        ({**gptq(4, 32), "dynamic": {"-:.*down.*": {}}}, "dynamic"),
        ({**awq(32), "version": "gemv"}, "gemv"),
        ({**awq(32), "bits": 8}, "8 bits"),
        (compressed("float-quantized", 8, 32, True), "float-quantized"),
        (compressed("int-quantized", 4, 32, True), "int-quantized"),
        ({"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}}, "config_groups"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(section: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        read_layout(HFConfig({"quantization_config": section}))


def test_activation_order_is_refused(tmp_path: Path) -> None:
    module = random_module(np.random.default_rng(0), 4, 8, 64, 32, True)
    tensors = as_gptq(module)
    tensors["g_idx"] = tensors["g_idx"][::-1].copy()
    weights = open_module(tmp_path, tensors, gptq(4, 32))
    with pytest.raises(UnsupportedError, match="desc_act"):
        weights.get("m.weight", (8, 64))


def test_tensors_of_another_size_are_refused(tmp_path: Path) -> None:
    module = random_module(np.random.default_rng(0), 4, 8, 64, 32, True)
    weights = open_module(tmp_path, as_gptq(module), gptq(4, 64))
    with pytest.raises(CheckpointError, match=r"m\.qzeros"):
        weights.get("m.weight", (8, 64))
    with pytest.raises(CheckpointError, match=r"m\.qweight"):
        weights.get("m.weight", (8, 128))


def test_modules_that_were_left_out_keep_their_plain_weights(tmp_path: Path) -> None:
    module = random_module(np.random.default_rng(0), 4, 8, 64, 32, True)
    plain = {"../other.weight": np.ones((3, 2), np.float32)}
    save_file(
        {f"m.{name}": tensor for name, tensor in as_gptq(module).items()}
        | {name.removeprefix("../"): tensor for name, tensor in plain.items()},
        tmp_path / "model.safetensors",
    )
    layout = read_layout(HFConfig({"quantization_config": gptq(4, 32)}))
    assert layout is not None
    weights = PackedWeights(SafetensorsWeights(tmp_path), layout)
    assert weights.unused() == ["m.weight", "other.weight"]
    assert weights.get("other.weight", (3, 2)).float32().sum() == 6
    assert weights.unused() == ["m.weight"]
