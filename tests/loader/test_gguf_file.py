from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.errors import CheckpointError, OctavoError
from octavo.loader.gguf_config import gguf_config, gguf_generation_config
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.gguf_types import TENSOR_TYPES
from octavo.loader.gguf_weights import GGUFWeights
from tests.loader import raw_gguf as raw
from tests.loader.raw_gguf import RawGGUF


def parse(content: RawGGUF | bytes, folder: Path) -> GGUFFile:
    path = folder / "file.gguf"
    path.write_bytes(bytes(content))
    return GGUFFile(path)


def test_file_of_the_gguf_package_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("näme")
    for name, number in {"uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000}.items():
        getattr(writer, f"add_{name}")(f"test.{name}", number)
    for name, number in {"uint32": 4 * 10**9, "int32": -(2**31), "uint64": 2**63, "int64": -(2**62)}.items():
        getattr(writer, f"add_{name}")(f"test.{name}", number)
    writer.add_float32("test.float32", 0.5)
    writer.add_float64("test.float64", 0.1)
    writer.add_bool("test.true", True)
    writer.add_bool("test.false", False)
    writer.add_array("test.texts", ["a", "", "日本"])
    writer.add_array("test.floats", [0.5, -2.0])
    writer.add_array("test.ints", [1, -2, 3])
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("matrix", matrix)
    writer.add_tensor("half", matrix.astype(np.float16)[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    assert file.version == 3
    assert file.architecture == "llama"
    assert file.require("general.name", str) == "näme"
    assert [file.get(f"test.{name}", int) for name in ("uint8", "int8", "uint16", "int16")] == [
        200,
        -100,
        60000,
        -30000,
    ]
    assert file.get("test.uint32", int) == 4 * 10**9 and file.get("test.int32", int) == -(2**31)
    assert file.get("test.uint64", int) == 2**63 and file.get("test.int64", int) == -(2**62)
    assert file.get("test.float32", float) == 0.5 and file.get("test.float64", float) == 0.1
    assert file.get("test.true", bool) is True and file.get("test.false", bool) is False
    assert file.strings("test.texts") == ["a", "", "日本"]
    floats, ints = file.numbers("test.floats"), file.numbers("test.ints")
    assert floats is not None and floats.tolist() == [0.5, -2.0]
    assert ints is not None and ints.tolist() == [1, -2, 3]
    info = file.tensors["matrix"]
    assert info.shape == (3, 4) and info.type.name == "F32"
    np.testing.assert_array_equal(file.tensor_bytes(info).view(np.float32).reshape(3, 4), matrix)
    np.testing.assert_array_equal(
        file.tensor_bytes(file.tensors["half"]).view(np.float16), matrix.astype(np.float16)[0]
    )


def test_version_2_and_other_alignments_are_read(tmp_path: Path) -> None:
    content = RawGGUF(
        values=[raw.int_value("general.alignment", 64)],
        tensors=[raw.tensor_info("first", (4,)), raw.tensor_info("second", (4,), offset=64)],
        data=struct.pack("<4f", 1, 2, 3, 4) + b"\0" * 48 + struct.pack("<4f", 5, 6, 7, 8),
        version=struct.pack("<I", 2),
        alignment=64,
    )
    file = parse(content, tmp_path)
    assert file.version == 2
    assert file.tensors["first"].offset % 64 == 0
    assert file.tensor_bytes(file.tensors["second"]).view(np.float32).tolist() == [5, 6, 7, 8]


def test_getters_refuse_values_of_another_type(tmp_path: Path) -> None:
    file = parse(raw.small_model(), tmp_path)
    assert file.get("llama.absent", int) is None
    assert file.get("llama.block_count", float) == 1.0
    with pytest.raises(CheckpointError, match=r"'llama\.absent'"):
        file.require("llama.absent", int)
    with pytest.raises(CheckpointError, match=r"'llama\.block_count' must be of type str, got 1"):
        file.get("llama.block_count", str)
    with pytest.raises(CheckpointError, match="add_bos_token"):
        file.get("tokenizer.ggml.add_bos_token", int)
    with pytest.raises(CheckpointError, match="array of numbers"):
        file.numbers("tokenizer.ggml.tokens")
    with pytest.raises(CheckpointError, match="array of strings"):
        file.strings("tokenizer.ggml.scores")


HUGE = 2**63
MALFORMED: dict[str, tuple[RawGGUF | bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "shorter than a header": (b"GGUF\3\0\0\0", "8 bytes"),
    "wrong magic": (RawGGUF(magic=b"GGML"), "starts with b'GGML'"),
    "version 1": (RawGGUF(version=struct.pack("<I", 1)), "version 1 is not supported"),
    "version from the future": (RawGGUF(version=struct.pack("<I", 4)), "version 4 is not supported"),
    "big-endian": (RawGGUF(version=struct.pack(">I", 3)), "big-endian"),
    "huge metadata count": (RawGGUF(num_values=HUGE), f"metadata count of {HUGE}"),
    "huge tensor count": (RawGGUF(num_tensors=HUGE), f"tensor count of {HUGE}"),
    "one value too few": (RawGGUF([raw.text_value("a", "b" * 20)], num_values=2, alignment=1), "only 0 are left"),
    "overlong key": (RawGGUF([struct.pack("<Q", HUGE) + b"k" * 16]), f"needs {HUGE} bytes"),
    "overlong string": (RawGGUF([raw.value("a", raw.STRING, struct.pack("<Q", 1000))]), "needs 1000 bytes"),
    "key that is no text": (RawGGUF([raw.value(b"\xff\xfe", raw.UINT32, b"\0" * 4)]), "not valid UTF-8"),
    "string that is no text": (RawGGUF([raw.value("a", raw.STRING, raw.string(b"\xff"))]), "'a' is not valid UTF-8"),
    "unknown value type": (RawGGUF([raw.value("a", 13, b"\0" * 8)]), "unknown value type 13"),
    "repeated key": (RawGGUF([raw.int_value("a", 1)] * 2), "'a' appears twice"),
    "huge number array": (RawGGUF([raw.array_value("a", raw.FLOAT32, HUGE, b"")]), f"array of {HUGE} elements"),
    "huge string array": (RawGGUF([raw.array_value("a", raw.STRING, HUGE, b"")]), "may be truncated"),
    "string array that ends early": (
        RawGGUF([raw.array_value("a", raw.STRING, 2, raw.string("x" * 20))], alignment=1),
        "after 1 of 2 strings",
    ),
    "overlong string in an array": (
        RawGGUF([raw.array_value("a", raw.STRING, 1, struct.pack("<Q", HUGE))]),
        "string 0 of metadata 'a' has a length",
    ),
    "string in an array that is no text": (
        RawGGUF([raw.array_value("a", raw.STRING, 1, raw.string(b"\xc3"))]),
        "string 0 of metadata 'a' is not valid UTF-8",
    ),
    "nested array": (RawGGUF([raw.array_value("a", raw.ARRAY, 1, b"\0" * 32)]), "nesting is not supported"),
    "array of an unknown type": (RawGGUF([raw.array_value("a", 77, 1, b"\0" * 32)]), "unknown type 77"),
    "alignment 0": (RawGGUF([raw.int_value("general.alignment", 0)]), "power of two, got 0"),
    "alignment 24": (RawGGUF([raw.int_value("general.alignment", 24)]), "power of two, got 24"),
    "alignment as text": (RawGGUF([raw.text_value("general.alignment", "32")]), "power of two, got '32'"),
    "no dimensions": (RawGGUF(tensors=[raw.tensor_info("t", ()) + b"\0" * 8]), "0 dimensions"),
    "too many dimensions": (RawGGUF(tensors=[raw.tensor_info("t", (1,) * 5)]), "5 dimensions"),
    "huge number of dimensions": (RawGGUF(tensors=[raw.tensor_info("t", (1,), rank=2**32 - 1)]), "dimensions"),
    "a dimension of 0": (RawGGUF(tensors=[raw.tensor_info("t", (4, 0))]), "empty"),
    "product past 64 bits": (RawGGUF(tensors=[raw.tensor_info("t", (2**40,) * 4)]), "ends at byte"),
    "product that is 0 in 64 bits": (RawGGUF(tensors=[raw.tensor_info("t", (2**32, 2**32))]), "ends at byte"),
    "unknown element type": (RawGGUF(tensors=[raw.tensor_info("t", type_id=4)]), "unknown element type 4"),
    "row that is no whole block": (RawGGUF(tensors=[raw.tensor_info("t", (33,), raw.Q8_0)]), "Q8_0 needs a multiple"),
    "repeated tensor": (RawGGUF(tensors=[raw.tensor_info("t")] * 2, data=b"\0" * 16), "'t' appears twice"),
    "unaligned offset": (RawGGUF(tensors=[raw.tensor_info("t", offset=8)], data=b"\0" * 64), "not a multiple of 32"),
    "huge offset": (RawGGUF(tensors=[raw.tensor_info("t", offset=HUGE)], data=b"\0" * 16), "ends at byte"),
    "tensor past the end": (RawGGUF(tensors=[raw.tensor_info("t")], data=b"\0" * 15), "ends at byte"),
    "overlong tensor name": (RawGGUF(tensors=[struct.pack("<Q", HUGE) + b"t" * 40]), "the name of tensor 0"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_with_what_and_where(case: str, tmp_path: Path) -> None:
    content, message = MALFORMED[case]
    with pytest.raises(CheckpointError) as raised:
        parse(content, tmp_path)
    assert message in str(raised.value)
    assert str(tmp_path / "file.gguf") in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_absent_file_and_folder_are_checkpoint_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            GGUFFile(path)


def use_everything(content: bytes, folder: Path) -> None:
    file = parse(content, folder)
    gguf_config(file)
    gguf_generation_config(file)
    weights = GGUFWeights(file)
    for name in weights.unused():
        if weights.has(name):
            weights.get(name, weights._tensors[name].shape).float32()


def mutations(original: bytes, seed: int, count: int) -> list[bytes]:
    """Return copies with flipped bytes, with a 4 or 8 byte field overwritten by a telling number, or cut short."""
    generator = np.random.default_rng(seed)
    telling = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
    mutated = []
    for _ in range(count):
        content = bytearray(original)
        kind = generator.integers(3)
        if kind == 0:
            for position in generator.integers(len(content), size=generator.integers(1, 4)):
                content[position] = generator.integers(256)
        elif kind == 1:
            size = int(generator.choice([4, 8]))
            number = telling[generator.integers(len(telling))] % 2 ** (8 * size)
            position = int(generator.integers(len(content) - size))
            content[position : position + size] = number.to_bytes(size, "little")
        else:
            del content[int(generator.integers(len(content))) :]
        mutated.append(bytes(content))
    return mutated


@pytest.mark.filterwarnings("ignore:invalid value")  # arithmetic on signalling NaNs
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_corrupt_file_never_raises_anything_else_nor_allocates_much(architecture: str, tmp_path: Path) -> None:
    original = bytes(raw.small_model(architecture))
    use_everything(original, tmp_path)
    num_refused = 0
    tracemalloc.start()
    for content in mutations(original, seed=7, count=600):
        try:
            use_everything(content, tmp_path)
        except OctavoError:
            num_refused += 1
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_refused > 200
    assert peak_bytes < 2_000_000


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    original = bytes(raw.small_model())
    for length in range(0, len(original), 5):
        with pytest.raises(CheckpointError):
            parse(original[:length], tmp_path)


def test_tensor_types_are_those_of_the_gguf_package() -> None:
    ours = {number: (kind.name, kind.block_size, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
    package = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert package.items() <= ours.items()
