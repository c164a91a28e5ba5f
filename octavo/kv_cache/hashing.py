"""Chained block hashes: equal hashes mean equal tokens, equal prefix and equal keys, over the whole prefix.

hash_i = SHA-256(hash_{i-1} | the block's token ids), and the hash before the first block is SHA-256 over the keys that
hold for the whole sequence (cache salt, adapter identity), each tagged and length-prefixed, so that no two different
inputs give the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

FORMAT_TAG = b"octavo.kv.1"


def root_hash(cache_salt: str | None = None, adapter: str | None = None) -> bytes:
    """Return the parent of a sequence's first block. Absent keys add nothing."""
    digest = hashlib.sha256(FORMAT_TAG)
    for tag, value in ((b"salt", cache_salt), (b"adapter", adapter)):
        if value is not None:
            digest.update(_tagged(tag, value.encode("utf-8", "surrogatepass")))
    return digest.digest()


def extend_block_hashes(block_hashes: list[bytes], token_ids: Sequence[int], block_size: int, root: bytes) -> None:
    """Append the hashes of the full blocks of token_ids that block_hashes lacks."""
    parent = block_hashes[-1] if block_hashes else root
    for start in range(len(block_hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = hashlib.sha256(parent + array("i", token_ids[start : start + block_size]).tobytes()).digest()
        block_hashes.append(parent)


def _tagged(tag: bytes, value: bytes) -> bytes:
    return struct.pack("<II", len(tag), len(value)) + tag + value
