"""Whole models in GGUF: every architecture converted from Transformers and read back, and the catalog's real files."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PretrainedConfig
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, get_gguf_hf_weights_map

from octavo.config.configs import LoadConfig
from octavo.errors import CheckpointError
from octavo.loader import catalog
from octavo.loader.gguf_config import gguf_config, gguf_generation_config
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.gguf_weights import GGUFWeights
from octavo.loader.hf_config import HFConfig
from octavo.loader.open import open_weights
from octavo.loader.resolve import open_checkpoint
from octavo.models.registry import ARCHITECTURES
from tests.loader.gguf_export import FAMILIES, random_model, stored_tensors, write_gguf


@pytest.mark.parametrize("name", FAMILIES)
def test_converted_model_has_the_tensors_and_the_config_that_it_came_from(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = random_model(family.config())
    write_gguf(model, family, tmp_path / "model.gguf")
    file = GGUFFile(tmp_path / "model.gguf")
    weights = GGUFWeights(file)

    for tensor_name, expected in stored_tensors(model).items():
        values = weights.get(tensor_name, expected.shape).float32()
        assert values.flags.c_contiguous and values.dtype == np.float32
        if family.norms_plus_one:  # x + 1 - 1 rounds
            np.testing.assert_allclose(values, expected, atol=1e-6, err_msg=tensor_name)
        else:
            np.testing.assert_array_equal(values, expected, err_msg=tensor_name)
    assert weights.unused() == []
    assert weights.has("lm_head.weight") != model.config.tie_word_embeddings

    config = gguf_config(file)
    original = HFConfig({**json.loads(model.config.to_json_string()), "architectures": [type(model).__name__]})
    assert config.list("architectures") == [type(model).__name__]
    read_config = ARCHITECTURES[type(model).__name__].read_config
    assert_alike(read_config(config), read_config(original))
    assert gguf_generation_config(file) == {"eos_token_id": [2], "bos_token_id": 1}


KINDS = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q8_0", "F16", "BF16")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", FAMILIES)
def test_compact_matrices_are_the_weights_of_the_file_in_the_hugging_face_order(
    name: str, kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    model = random_model(family.config())
    write_gguf(model, family, tmp_path / "model.gguf", kind)
    weights = GGUFWeights(GGUFFile(tmp_path / "model.gguf"))
    compact = []
    for tensor_name, expected in stored_tensors(model).items():
        tensor = weights.get(tensor_name, expected.shape)
        transposed = family.transposes and tensor_name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        assert not (transposed and tensor.compact()), "a matrix is compact in the orientation of the file only"
        matrix = tensor.compact(transposed)
        if matrix is None:
            continue
        compact.append(tensor_name)
        values = tensor.float32().T if transposed else tensor.float32()
        assert (matrix.out_features, matrix.in_features) == values.shape
        np.testing.assert_array_equal(matrix.dequantized(), values, err_msg=tensor_name)
    assert any("mlp" in tensor_name or "fc" in tensor_name for tensor_name in compact)
    assert any("q_proj" in n or "qkv" in n or "c_attn" in n for n in compact) and all("norm" not in n for n in compact)


def assert_alike(ours: Any, expected: Any, where: str = "") -> None:
    """Compare nested dataclasses; numbers may differ by float32 rounding, since GGUF stores them so."""
    if hasattr(expected, "inverse_frequencies"):  # a rotation: what it does, however it is described
        for length in (32, 256):
            np.testing.assert_allclose(ours.inverse_frequencies(length), expected.inverse_frequencies(length), 1e-6)
        assert math.isclose(ours.magnitude(), expected.magnitude(), rel_tol=1e-6)
    elif is_dataclass(expected):
        assert type(ours) is type(expected), where
        for field in fields(expected):
            assert_alike(getattr(ours, field.name), getattr(expected, field.name), f"{where}.{field.name}")
    elif isinstance(expected, tuple):
        assert len(ours) == len(expected), where
        for index, (our_item, item) in enumerate(zip(ours, expected, strict=True)):
            assert_alike(our_item, item, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert ours is not None and math.isclose(ours, expected, rel_tol=1e-6), (where, ours, expected)
    else:
        assert ours == expected, (where, ours, expected)


# What the models' config.json on the hub says.
PUBLISHED_CONFIGS: dict[str, PretrainedConfig] = {
    "smollm2-135m-instruct": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100_000,
        tie_word_embeddings=True,
    ),
    "gemma-3-270m": Gemma3TextConfig(
        vocab_size=262_144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        query_pre_attn_scalar=256,
        sliding_window=512,
        sliding_window_pattern=6,
        tie_word_embeddings=True,
    ),
}


@pytest.mark.model
@pytest.mark.parametrize("name", PUBLISHED_CONFIGS)
def test_real_file_has_the_values_that_transformers_reads_from_it(name: str) -> None:
    path = catalog.pull(name)
    file = GGUFFile(path)
    weights = GGUFWeights(file)
    reference_config = PUBLISHED_CONFIGS[name]
    with torch.device("meta"):  # only its names and shapes count
        skeleton = AutoModelForCausalLM.from_config(reference_config)
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items() if name != "lm_head.weight"}
    # The steps of Transformers' load_gguf_checkpoint, without its reader, which takes half a minute for a vocabulary.
    processor = TENSOR_PROCESSORS[file.architecture](reference_config.to_dict())
    hf_names = get_gguf_hf_weights_map(skeleton, processor)
    assert {hf_names[gguf_name] for gguf_name in file.tensors} == shapes.keys()
    for gguf_name, info in file.tensors.items():
        rows = file.tensor_bytes(info).reshape(*info.shape[:-1], -1)
        stored = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[info.type.name])
        expected = processor.process(weights=stored, name=gguf_name).weights
        values = weights.get(hf_names[gguf_name], shapes[hf_names[gguf_name]]).float32()
        assert np.array_equal(values, expected), gguf_name
    assert weights.unused() == []
    assert not weights.has("lm_head.weight")

    architecture = type(skeleton).__name__
    original = HFConfig({**json.loads(reference_config.to_json_string()), "architectures": [architecture]})
    read_config = ARCHITECTURES[architecture].read_config
    assert_alike(read_config(gguf_config(file)), read_config(original))


@pytest.mark.model
def test_real_files_end_at_the_ids_of_their_chat_format() -> None:
    smollm2 = gguf_generation_config(GGUFFile(catalog.pull("smollm2")))
    gemma3 = gguf_generation_config(GGUFFile(catalog.pull("gemma3-270m")))
    assert smollm2["eos_token_id"] == [2, 0]  # <|im_end|>, <|endoftext|>
    assert gemma3["eos_token_id"] == [1, 106]  # <eos>, <end_of_turn>


def write_split(model: Any, folder: Path, num_tensors: int = 9) -> list[Path]:
    """Write a llama as the gguf package splits it; return its files."""
    write_gguf(model, FAMILIES["llama"], folder / "m.gguf", split_max_tensors=num_tensors)
    return sorted(folder.glob("*.gguf"))


def test_a_split_model_has_the_tensors_of_all_its_files(tmp_path: Path) -> None:
    model = random_model(FAMILIES["llama"].config())
    files = write_split(model, tmp_path)
    assert len(files) > 2
    for name in (tmp_path, files[0]):
        checkpoint = open_checkpoint(str(name), LoadConfig())
        weights = open_weights(checkpoint, LoadConfig())
        for tensor_name, expected in stored_tensors(model).items():
            values = weights.get(tensor_name, expected.shape).float32()
            if "norm" in tensor_name or "mlp" in tensor_name:  # the conversion reorders rows of others
                np.testing.assert_array_equal(values, expected, err_msg=tensor_name)
        assert weights.unused() == []


def test_a_split_model_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    files = write_split(random_model(FAMILIES["llama"].config()), tmp_path)
    with pytest.raises(CheckpointError, match="give the first, whose name ends with -00001-of-0000"):
        GGUFFile(files[1])
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(CheckpointError, match=r"'split\.no' must be 1, got 2"):
        GGUFFile(files[0])
    files[1].unlink()
    with pytest.raises(CheckpointError, match="-00002-of-0000"):
        GGUFFile(files[0])
