"""KV cache events: what a router or an external cache needs to follow the prefix cache's content."""

from __future__ import annotations

import msgspec


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Blocks entered the prefix cache; hashes are the chained block hashes, parent the one before the first."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    group_id: int = 0


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """Blocks left the prefix cache."""

    block_hashes: list[bytes]
    group_id: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """The prefix cache was reset."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
