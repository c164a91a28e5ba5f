"""GGUF files built byte by byte, so that every field can be made wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
F32, Q8_0 = 0, 8


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(key: str | bytes, type_id: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_id) + payload


def text_value(key: str, text: str) -> bytes:
    return value(key, STRING, string(text))


def int_value(key: str, number: int) -> bytes:
    return value(key, UINT32, struct.pack("<I", number))


def float_value(key: str, number: float) -> bytes:
    return value(key, FLOAT32, struct.pack("<f", number))


def array_value(key: str, type_id: int, count: int, payload: bytes) -> bytes:
    return value(key, ARRAY, struct.pack("<IQ", type_id, count) + payload)


def tensor_info(
    name: str | bytes, dimensions: Sequence[int] = (4,), type_id: int = F32, offset: int = 0, rank: int | None = None
) -> bytes:
    """Describe a tensor; dimensions in the file's order, the fastest first."""
    head = struct.pack("<I", len(dimensions) if rank is None else rank)
    return string(name) + head + struct.pack(f"<{len(dimensions)}QIQ", *dimensions, type_id, offset)


@dataclass
class RawGGUF:
    """A file's parts; counts follow from the parts unless they are set."""

    values: Sequence[bytes] = ()
    tensors: Sequence[bytes] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: bytes = field(default=struct.pack("<I", 3))
    num_values: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def __bytes__(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_values = len(self.values) if self.num_values is None else self.num_values
        head = self.magic + self.version + struct.pack("<QQ", num_tensors, num_values)
        head += b"".join(self.values) + b"".join(self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data


def small_model(architecture: str = "llama", **changes: bytes | None) -> RawGGUF:
    """Return a readable model with one of its layer's tensors. changes: metadata to replace, or None to leave out."""
    values: dict[str, bytes | None] = {
        "name": text_value("general.architecture", architecture),
        "block_count": int_value(f"{architecture}.block_count", 1),
        "context_length": int_value(f"{architecture}.context_length", 64),
        "embedding_length": int_value(f"{architecture}.embedding_length", 8),
        "feed_forward_length": int_value(f"{architecture}.feed_forward_length", 16),
        "head_count": int_value(f"{architecture}.attention.head_count", 2),
        "rms_epsilon": float_value(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5),
        "tokens": array_value("tokenizer.ggml.tokens", STRING, 3, string("<s>") + string("é") + string("</s>")),
        "scores": array_value("tokenizer.ggml.scores", FLOAT32, 3, struct.pack("<3f", 0, -1, -2)),
        "token_type": array_value("tokenizer.ggml.token_type", INT32, 3, struct.pack("<3i", 3, 1, 3)),
        "eos": int_value("tokenizer.ggml.eos_token_id", 2),
        "add_bos": value("tokenizer.ggml.add_bos_token", BOOL, b"\1"),
        **changes,
    }
    return RawGGUF(
        values=[entry for entry in values.values() if entry is not None],
        tensors=[
            tensor_info("token_embd.weight", (8, 3)),
            tensor_info("output_norm.weight", (8,), offset=96),
            tensor_info("blk.0.attn_q.weight", (32, 4), Q8_0, offset=128),
        ],
        data=struct.pack("<24f", *range(24)) + struct.pack("<8f", *range(8)) + bytes(range(136)),
    )
