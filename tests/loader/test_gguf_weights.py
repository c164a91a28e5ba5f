from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.gguf_names import Change, hf_name
from octavo.loader.gguf_types import TENSOR_TYPES
from octavo.loader.gguf_weights import GGUFWeights
from tests.loader import raw_gguf as raw
from tests.loader.raw_gguf import RawGGUF

CAN_DEQUANTIZE = ["F32", "F16", *sorted(kind.name for kind in gguf.quants._type_traits)]


def one_tensor(type_name: str, data: bytes, row_length: int, folder: Path, num_rows: int = 3) -> GGUFWeights:
    """Return the weights of a qwen2 file whose only tensor is the embedding, stored as `data`."""
    type_id = next(number for number, kind in TENSOR_TYPES.items() if kind.name == type_name)
    content = raw.small_model("qwen2")
    path = folder / "model.gguf"
    tensor = raw.tensor_info("token_embd.weight", (row_length, num_rows), type_id)
    path.write_bytes(bytes(RawGGUF(content.values, [tensor], data)))
    return GGUFWeights(GGUFFile(path))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")  # random bits are any number
def test_every_type_that_the_gguf_package_dequantises_gives_its_values(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    assert len(CAN_DEQUANTIZE) >= 20
    for type_name in CAN_DEQUANTIZE:
        kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == type_name)
        row_length = 2 * kind.block_size if kind.block_size > 1 else 24
        row_bytes = row_length // kind.block_size * kind.block_bytes
        data = generator.integers(256, size=(3, row_bytes), dtype=np.uint8)
        weights = one_tensor(type_name, data.tobytes(), row_length, tmp_path)
        values = weights.get("model.embed_tokens.weight", (3, row_length)).float32()
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type_name])
        assert values.dtype == np.float32 and values.flags.c_contiguous, type_name
        np.testing.assert_array_equal(values, expected.reshape(3, row_length), err_msg=type_name)


@pytest.mark.parametrize("type_name", ["I8", "I32", "F64", "Q8_K"])
def test_other_types_are_refused_by_name(type_name: str, tmp_path: Path) -> None:
    kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == type_name)
    weights = one_tensor(type_name, bytes(3 * kind.block_bytes), kind.block_size, tmp_path)
    tensor = weights.get("model.embed_tokens.weight", (3, kind.block_size))
    with pytest.raises(UnsupportedError, match=rf"'token_embd\.weight' has the type {type_name}"):
        tensor.float32()


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    for padding in range(4):
        content = RawGGUF(
            [
                *raw.small_model("qwen2").values,
                raw.int_value("general.alignment", 1),
                raw.text_value("x", "y" * padding),
            ],
            [raw.tensor_info("token_embd.weight", (2, 3))],
            values.tobytes(),
            alignment=1,
        )
        path = tmp_path / "model.gguf"
        path.write_bytes(bytes(content))
        tensor = GGUFWeights(GGUFFile(path)).get("model.embed_tokens.weight", (3, 2))
        np.testing.assert_array_equal(tensor.float32(), values.reshape(3, 2))


def test_missing_and_misshapen_tensors_are_named_with_expected_and_got(tmp_path: Path) -> None:
    weights = one_tensor("F32", bytes(48), 4, tmp_path)
    assert weights.has("model.embed_tokens.weight") and not weights.has("lm_head.weight")
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight'"):
        weights.get("lm_head.weight", (3, 4))
    with pytest.raises(CheckpointError, match=r"'model\.embed_tokens\.weight' has shape \[3, 4\].* asks for \[3, 5\]"):
        weights.get("model.embed_tokens.weight", (3, 5))
    assert weights.unused() == ["model.embed_tokens.weight"]
    weights.get("model.embed_tokens.weight", (3, 4))
    assert weights.unused() == []


def test_tensors_that_the_architecture_does_not_know_stay_unused_under_their_own_name(tmp_path: Path) -> None:
    content = raw.small_model("qwen2")
    content.tensors = [*content.tensors, raw.tensor_info("blk.0.ssm_in.weight", (4,)), raw.tensor_info("x", (4,))]
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(content))
    unused = GGUFWeights(GGUFFile(path)).unused()
    assert "blk.0.ssm_in.weight" in unused and "x" in unused


@pytest.mark.parametrize("architecture", ["llama", "granite", "smollm3"])
def test_llama_family_reorders_query_and_key_rows_and_their_biases(architecture: str) -> None:
    for suffix in ("weight", "bias"):
        query = hf_name(architecture, f"blk.12.attn_q.{suffix}")
        key = hf_name(architecture, f"blk.12.attn_k.{suffix}")
        assert query is not None and query.name == f"model.layers.12.self_attn.q_proj.{suffix}"
        assert query.change is Change.QUERY_ROWS
        assert key is not None and key.change is Change.KEY_ROWS
    value = hf_name(architecture, "blk.12.attn_v.weight")
    assert value is not None and value.change is Change.NONE


@pytest.mark.parametrize(
    "name", ["", "blk.weight", "blk.x.attn_q.weight", "blk.0.attn_q", "blk.0.attn_q.scale", "v.weight"]
)
def test_names_of_no_tensor_have_no_counterpart(name: str) -> None:
    assert hf_name("llama", name) is None


def test_rows_that_do_not_fit_the_heads_are_refused(tmp_path: Path) -> None:
    content = raw.small_model("llama", head_count=raw.int_value("llama.attention.head_count", 3))
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(content))
    tensor = GGUFWeights(GGUFFile(path)).get("model.layers.0.self_attn.q_proj.weight", (4, 32))
    with pytest.raises(CheckpointError, match=r"4 rows.* 3 heads"):
        tensor.float32()


def test_letting_go_of_the_files_pages_changes_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(256, size=(3, 2 * 34), dtype=np.uint8)
    weights = one_tensor("Q8_0", data.tobytes(), 64, tmp_path)
    name, shape = "model.embed_tokens.weight", (3, 64)
    before, matrix = weights.get(name, shape).float32(), weights.get(name, shape).compact()
    assert matrix is not None
    monkeypatch.setattr("octavo.loader.local_files.PageRelease._READ_BYTES", 0)
    again = weights.get(name, shape)  # releases what was read before it
    np.testing.assert_array_equal(matrix.dequantized(), before)
    np.testing.assert_array_equal(again.float32(), before)
