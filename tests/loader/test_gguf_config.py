from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.gguf_config import gguf_config, gguf_generation_config
from octavo.loader.gguf_file import GGUFFile
from tests.loader import raw_gguf as raw
from tests.loader.raw_gguf import RawGGUF


def open_model(folder: Path, architecture: str = "llama", **changes: bytes | None) -> GGUFFile:
    return open_raw(folder, raw.small_model(architecture, **changes))


def open_raw(folder: Path, content: RawGGUF) -> GGUFFile:
    path = folder / "model.gguf"
    path.write_bytes(bytes(content))
    return GGUFFile(path)


def config_of(folder: Path, architecture: str = "llama", **changes: bytes | None) -> dict[str, Any]:
    return gguf_config(open_model(folder, architecture, **changes)).values


def test_defaults_of_absent_keys(tmp_path: Path) -> None:
    values = config_of(tmp_path)
    assert values["num_key_value_heads"] == 2  # as many as query heads
    assert values["head_dim"] == 4
    assert values["rope_theta"] == 10_000.0 and values["rope_scaling"] is None
    assert values["vocab_size"] == 3  # the embedding's rows
    assert values["tie_word_embeddings"] is True
    assert values["eos_token_id"] == 2 and values["bos_token_id"] is None


def test_an_output_matrix_means_untied(tmp_path: Path) -> None:
    content = raw.small_model()
    content.tensors = [*content.tensors, raw.tensor_info("output.weight", (8, 3))]
    assert gguf_config(open_raw(tmp_path, content)).bool("tie_word_embeddings") is False


REFUSED: dict[str, tuple[str, dict[str, bytes | None], type[Exception], str]] = {
    "unknown architecture": ("mamba", {}, UnsupportedError, "'mamba'; supported GGUF architectures: llama"),
    "no architecture": ("llama", {"name": None}, CheckpointError, "general.architecture"),
    "experts": ("qwen2", {"x": raw.int_value("qwen2.expert_count", 8)}, UnsupportedError, "mixture-of-experts"),
    "part of a split": ("llama", {"x": raw.int_value("split.count", 3)}, CheckpointError, "one of 3 files"),
    "OLMo 3": ("olmo2", {"x": raw.int_value("olmo2.attention.sliding_window", 9)}, UnsupportedError, "OLMo 3"),
    "no size": ("llama", {"embedding_length": None}, CheckpointError, "'llama.embedding_length'"),
    "size 0": ("llama", {"head_count": raw.int_value("llama.attention.head_count", 0)}, CheckpointError, "positive"),
    "size as text": ("llama", {"block_count": raw.text_value("llama.block_count", "1")}, CheckpointError, "numbers"),
    "layers without tensors": (
        "gemma3", {"block_count": raw.int_value("gemma3.block_count", 2**32 - 1)}, CheckpointError, "only 3 tensors",
    ),
    "heads that differ": (
        "llama",
        {"x": raw.array_value("llama.attention.head_count_kv", raw.INT32, 2, struct.pack("<2i", 1, 2))},
        UnsupportedError,
        "differs from layer to layer",
    ),
    "keys wider than values": (
        "qwen3",
        {
            "k": raw.int_value("qwen3.attention.key_length", 8),
            "v": raw.int_value("qwen3.attention.value_length", 4),
        },
        UnsupportedError,
        "keys of 8 and values of 4",
    ),
    "odd rotation": ("llama", {"x": raw.int_value("llama.rope.dimension_count", 3)}, CheckpointError, "even number"),
    "wide rotation": ("llama", {"x": raw.int_value("llama.rope.dimension_count", 6)}, CheckpointError, "head size 4"),
    "unknown scaling": ("llama", {"x": raw.text_value("llama.rope.scaling.type", "x")}, UnsupportedError, "'x'"),
    "scaling by nothing": ("llama", {"x": raw.text_value("llama.rope.scaling.type", "yarn")}, CheckpointError, "fact"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_model_that_cannot_be_described_is_refused(case: str, tmp_path: Path) -> None:
    architecture, changes, error, message = REFUSED[case]
    with pytest.raises(error, match=message.replace(".", r"\.")):
        config_of(tmp_path, architecture, **changes)


def test_sizes_that_are_the_same_for_every_layer_may_be_arrays(tmp_path: Path) -> None:
    lengths = raw.array_value("llama.feed_forward_length", raw.INT32, 2, struct.pack("<2i", 16, 16))
    assert config_of(tmp_path, feed_forward_length=lengths)["intermediate_size"] == 16


def test_partial_rotation_and_old_linear_scale(tmp_path: Path) -> None:
    values = config_of(
        tmp_path,
        rotary=raw.int_value("llama.rope.dimension_count", 2),
        scale=raw.float_value("llama.rope.scale_linear", 4.0),
    )
    assert values["partial_rotary_factor"] == 0.5
    assert values["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize("bad", [[0.0, 1.0], [float("nan"), 1.0], [1.0]])
def test_bad_frequency_factors_are_refused(bad: list[float], tmp_path: Path) -> None:
    content = raw.small_model()
    content.tensors = [
        raw.tensor_info("rope_freqs.weight", (len(bad),)),
        raw.tensor_info("token_embd.weight", (8, 1), offset=32),
    ]
    content.data = np.array(bad, np.float32).tobytes().ljust(64, b"\0")
    with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight'"):
        gguf_config(open_raw(tmp_path, content))


def gemma_layers(folder: Path, architecture: str, num_layers: int, **changes: bytes | None) -> dict[str, Any]:
    content = raw.small_model(
        architecture, block_count=raw.int_value(f"{architecture}.block_count", num_layers), **changes
    )
    content.tensors = [
        *content.tensors,
        *(raw.tensor_info(f"blk.{i}.ffn_norm.weight", (8,)) for i in range(num_layers)),
    ]
    return gguf_config(open_raw(folder, content)).values


def kinds(values: dict[str, Any]) -> str:
    """Spell layer_types with a letter a layer: s for sliding, f for full."""
    return "".join(kind[0] for kind in values["layer_types"])


def test_gemma_layer_patterns(tmp_path: Path) -> None:
    window = raw.int_value("gemma3.attention.sliding_window", 32)
    assert kinds(gemma_layers(tmp_path, "gemma2", 4)) == "sfsf"
    assert gemma_layers(tmp_path, "gemma2", 4)["sliding_window"] == 4096
    assert kinds(gemma_layers(tmp_path, "gemma3", 7, window=window)) == "sssssfs"
    assert kinds(gemma_layers(tmp_path, "gemma3", 3)) == "fff"  # no window, no sliding layers
    period = raw.int_value("gemma3.attention.sliding_window_pattern", 2)
    assert kinds(gemma_layers(tmp_path, "gemma3", 4, window=window, period=period)) == "sfsf"
    pattern = raw.array_value("gemma3.attention.sliding_window_pattern", raw.BOOL, 3, b"\0\1\1")
    assert kinds(gemma_layers(tmp_path, "gemma3", 3, window=window, pattern=pattern)) == "fss"
    with pytest.raises(CheckpointError, match="3 entries for 4 layers"):
        gemma_layers(tmp_path, "gemma3", 4, window=window, pattern=pattern)


@pytest.mark.parametrize(("architecture", "large"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_gemmas_scale_queries_by_the_hidden_size_per_head(
    architecture: str, large: int, tmp_path: Path
) -> None:
    key_length = raw.int_value(f"{architecture}.attention.key_length", 16)
    assert gemma_layers(tmp_path, architecture, large, k=key_length)["query_pre_attn_scalar"] == 4  # 8 / 2 heads
    assert gemma_layers(tmp_path, architecture, 6, k=key_length)["query_pre_attn_scalar"] == 16


def test_every_id_that_ends_a_turn_is_known(tmp_path: Path) -> None:
    """A second, shorter list of names missed some ends, and <|end_of_role|>, which ends no turn, was in it."""
    texts = ["a", "<|im_end|>", "<|eot_id|>", "</s>", "<|end|>", "<|end_of_role|>", "<end_of_utterance>"]
    types = struct.pack("<7i", 1, 3, 3, 3, 1, 3, 3)  # files mislabel end-of-turn tokens as normal ones
    file = open_model(
        tmp_path,
        tokens=raw.array_value("tokenizer.ggml.tokens", raw.STRING, 7, b"".join(map(raw.string, texts))),
        token_type=raw.array_value("tokenizer.ggml.token_type", raw.INT32, 7, types),
        eos=raw.int_value("tokenizer.ggml.eos_token_id", 3),
        eot=raw.int_value("tokenizer.ggml.eot_token_id", 2),
        bos=raw.int_value("tokenizer.ggml.bos_token_id", 0),
    )
    assert gguf_generation_config(file) == {"eos_token_id": [3, 1, 2, 4, 6], "bos_token_id": 0}


def test_special_id_outside_the_vocabulary_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("octavo"), "propagate", True)
    file = open_model(tmp_path, eos=raw.int_value("tokenizer.ggml.eos_token_id", 2**32 - 1))
    assert gguf_generation_config(file) == {"eos_token_id": [2]}, "the control token </s> ends an answer all the same"
    assert "eos_token_id" in caplog.text


def test_sampling_defaults_of_the_file(tmp_path: Path) -> None:
    file = open_model(
        tmp_path,
        temperature=raw.float_value("general.sampling.temp", 0.5),
        top_k=raw.value("general.sampling.top_k", raw.INT32, struct.pack("<i", 40)),
    )
    generation = gguf_generation_config(file)
    assert generation["temperature"] == 0.5 and generation["top_k"] == 40
