"""Chained block hashes: equal hashes mean equal tokens, equal prefix and equal keys, over the whole prefix.

hash_i = SHA-256(hash_{i-1} | items that begin in or reach into block i | the block's token ids), and the hash before
the first block is SHA-256 over the tagged keys that hold for the whole sequence (cache salt, adapter identity).
Every field is tagged and length-prefixed, so that no two different inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

FORMAT_TAG = b"octavo.kv.1"


class SequenceItem(NamedTuple):
    """Content that stands at token positions start .. start + num_tokens - 1 (an image's placeholders)."""

    identity: str
    start: int
    num_tokens: int


def root_hash(cache_salt: str | None = None, adapter: str | None = None) -> bytes:
    """Return the parent of a sequence's first block. Absent keys add nothing."""
    digest = hashlib.sha256(FORMAT_TAG)
    for tag, value in ((b"salt", cache_salt), (b"adapter", adapter)):
        if value is not None:
            digest.update(_tagged(tag, value.encode("utf-8", "surrogatepass")))
    return digest.digest()


def extend_block_hashes(
    block_hashes: list[bytes],
    token_ids: Sequence[int],
    block_size: int,
    root: bytes,
    items: Sequence[SequenceItem] = (),
) -> None:
    """Append the hashes of the full blocks of token_ids that block_hashes lacks."""
    parent = block_hashes[-1] if block_hashes else root
    for start in range(len(block_hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        digest = hashlib.sha256(parent)
        if items:
            digest.update(_item_keys(items, start, start + block_size))
        digest.update(array("i", token_ids[start : start + block_size]).tobytes())
        parent = digest.digest()
        block_hashes.append(parent)


def _item_keys(items: Iterable[SequenceItem], start: int, end: int) -> bytes:
    """Encode the items that overlap start .. end - 1, each with its offset from the block's start."""
    keys = b""
    for item in items:
        if item.start < end and item.start + item.num_tokens > start:
            keys += _tagged(b"item", item.identity.encode() + struct.pack("<q", item.start - start))
    return keys


def _tagged(tag: bytes, value: bytes) -> bytes:
    return struct.pack("<II", len(tag), len(value)) + tag + value
