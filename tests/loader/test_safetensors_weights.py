from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from octavo.errors import CheckpointError, OctavoError, UnsupportedError
from octavo.loader.safetensors_weights import INDEX_FILE, SINGLE_FILE, SafetensorsFile, SafetensorsWeights
from tests.loader.test_gguf_file import mutations


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_values_are_those_that_torch_reads(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-40, 65504.0, 3.140625])
    tensors = {
        "matrix": torch.randn(5, 7).to(dtype),
        "special": special.to(dtype),
        "scalar": torch.tensor(2.5, dtype=dtype),
    }
    save_file(tensors, tmp_path / SINGLE_FILE)
    weights = SafetensorsWeights(tmp_path)
    for name, tensor in tensors.items():
        values = weights.get(name, tuple(tensor.shape)).float32()
        assert values.dtype == np.float32 and values.flags.c_contiguous and values.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(values.view(np.uint32), tensor.float().numpy().view(np.uint32), name)


def test_every_bfloat16_is_exact(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    tensor = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    save_file({"all": tensor}, tmp_path / SINGLE_FILE)
    values = SafetensorsWeights(tmp_path).get("all", (1 << 16,)).float32()
    np.testing.assert_array_equal(values.view(np.uint32), bits.astype(np.uint32) << 16)


def test_header_of_an_odd_length_is_read(tmp_path: Path) -> None:
    for padding in range(4):
        header = json.dumps({"x": entry()}).encode() + b" " * padding
        (tmp_path / SINGLE_FILE).write_bytes(file_of(header, struct.pack("<2f", 1.5, -2)))
        assert SafetensorsWeights(tmp_path).get("x", (2,)).float32().tolist() == [1.5, -2.0]


def test_sharded_model_has_the_tensors_of_the_single_file(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "single")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    single, sharded = SafetensorsWeights(tmp_path / "single"), SafetensorsWeights(tmp_path / "sharded")
    assert single.unused() == sharded.unused() == sorted(model.state_dict())
    for name, tensor in model.state_dict().items():
        for weights in (single, sharded):
            np.testing.assert_array_equal(weights.get(name, tuple(tensor.shape)).float32(), tensor.numpy(), name)
    assert single.unused() == sharded.unused() == []


def test_files_without_an_index_are_read_together(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "part1.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "part2.safetensors")
    assert SafetensorsWeights(tmp_path).unused() == ["a", "b"]
    save_file({"a": torch.zeros(2)}, tmp_path / "part3.safetensors")
    with pytest.raises(CheckpointError, match=r"'a' is in both .*part1.* and .*part3"):
        SafetensorsWeights(tmp_path)


def test_second_copy_in_another_layout_is_not_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / SINGLE_FILE)
    save_file({"layers.0.a": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    assert SafetensorsWeights(tmp_path).unused() == ["a"]


def test_missing_and_misshapen_tensors_are_named_with_expected_and_got(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3)}, tmp_path / SINGLE_FILE)
    weights = SafetensorsWeights(tmp_path)
    assert weights.has("a") and not weights.has("b")
    with pytest.raises(CheckpointError, match=r"no tensor 'b'"):
        weights.get("b", (2, 3))
    with pytest.raises(CheckpointError, match=r"'a' has shape \[2, 3\].* asks for \[3, 2\]"):
        weights.get("a", (3, 2))
    assert weights.unused() == ["a"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.float8_e4m3fn])
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2).to(dtype)}, tmp_path / SINGLE_FILE)
    tensor = SafetensorsWeights(tmp_path).get("a", (2,))
    with pytest.raises(UnsupportedError, match=rf"'a' has the dtype {tensor.dtype}"):
        tensor.float32()


HUGE = 2**62
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "only 0 bytes"),
    "shorter than a length": (b"\0" * 7, "only 7 bytes"),
    "huge header": (file_of({}, length=HUGE), f"header should have {HUGE} bytes"),
    "header past the end": (file_of({}, length=3), "header should have 3 bytes but only 2 follow"),
    "no JSON": (file_of(b"{nope"), "not valid JSON"),
    "no text": (file_of(b"\xff\xfe\xfd"), "not valid JSON"),
    "deep JSON": (file_of(b"[" * 200_000), "not valid JSON"),
    "no object": (file_of([]), "not a JSON object"),
    "no entry": (file_of({"a": 1}), "'a' needs dtype, shape and data_offsets"),
    "no offsets": (file_of({"a": {"dtype": "F32", "shape": [2]}}), "'a' needs dtype, shape and data_offsets"),
    "unknown dtype": (file_of({"a": entry("F31")}, bytes(8)), "unknown dtype 'F31'"),
    "dtype that is no text": (file_of({"a": {**entry(), "dtype": ["F32"]}}, bytes(8)), "unknown dtype"),
    "negative size": (file_of({"a": entry(shape=(-2,))}, bytes(8)), "shape [-2]"),
    "fractional size": (file_of({"a": entry(shape=(2.0,))}, bytes(8)), "shape [2.0]"),
    "shape that is no list": (file_of({"a": {**entry(), "shape": 2}}, bytes(8)), "shape 2"),
    "huge product": (file_of({"a": entry(shape=(HUGE, HUGE))}, bytes(8)), "span 8"),
    "three offsets": (file_of({"a": entry(offsets=(0, 4, 8))}, bytes(8)), "expected [start, end]"),
    "negative offset": (file_of({"a": entry(offsets=(-8, 0))}, bytes(8)), "expected [start, end]"),
    "end before start": (file_of({"a": entry(offsets=(8, 0))}, bytes(8)), "span -8"),
    "wrong span": (file_of({"a": entry(offsets=(0, 4))}, bytes(8)), "8 bytes, but its data_offsets 0..4 span 4"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    "a web page": (b"\n<!DOCTYPE html><html>Sign in</html>", "is a web page"),
    "past the end": (file_of({"a": entry()}, bytes(7)), "it may be truncated"),
    "far past the end": (file_of({"a": entry(offsets=(HUGE, HUGE + 8))}, bytes(8)), "it may be truncated"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_with_what_is_wrong(case: str, tmp_path: Path) -> None:
    content, message = MALFORMED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        SafetensorsFile(path)
    assert message in str(raised.value) and str(path) in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_corrupt_file_never_raises_anything_else(tmp_path: Path) -> None:
    names = ("a", "b")
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4).half()}, tmp_path / SINGLE_FILE)
    original = (tmp_path / SINGLE_FILE).read_bytes()
    num_refused = 0
    for content in mutations(original, seed=5, count=600):
        (tmp_path / SINGLE_FILE).write_bytes(content)
        try:
            weights = SafetensorsWeights(tmp_path)
            for name in names:
                weights.get(name, weights._tensors[name].shape if weights.has(name) else ()).float32()
        except OctavoError:
            num_refused += 1
    assert num_refused > 200


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))


def test_missing_shards_are_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00003.safetensors")
    write_index(tmp_path, {name: f"model-0000{i}-of-00003.safetensors" for i, name in enumerate("abc", 1)})
    with pytest.raises(CheckpointError, match=r"2 of 3 shards .*model-00002-of-00003\.safetensors, model-00003-of"):
        SafetensorsWeights(tmp_path)


def test_index_that_names_an_absent_tensor_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00001.safetensors")
    write_index(tmp_path, {"a": "model-00001-of-00001.safetensors", "b": "model-00001-of-00001.safetensors"})
    with pytest.raises(CheckpointError, match=r"'b' is in model-00001-of-00001\.safetensors, but it is not"):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize("content", ["[", "[]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'])
def test_malformed_index_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        SafetensorsWeights(tmp_path)


def test_index_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "outside.safetensors")
    for shard in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "..", ""):
        write_index(folder, {"a": shard})
        with pytest.raises(CheckpointError):
            SafetensorsWeights(folder)


def test_folder_without_weights_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors or model\.safetensors\.index\.json"):
        SafetensorsWeights(tmp_path)
