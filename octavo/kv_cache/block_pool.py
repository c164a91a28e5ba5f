"""All KV blocks of a worker: who is free, who is cached under which hash, who is evicted next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.kv_cache.block import FreeBlockQueue, KVCacheBlock
from octavo.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from octavo.types.stats import BlockState

_MAX_EVENTS = 2**16  # that are kept for whoever takes them


class BlockPool:
    """Hands out blocks, counts references, and keeps freed blocks findable by hash until their memory is needed.

    Block 0 is the null block: never handed out, never freed, it stands for positions whose keys nobody needs.
    """

    def __init__(self, num_blocks: int, num_groups: int, enable_caching: bool, enable_events: bool = False) -> None:
        assert num_blocks > (num_groups > 0), f"a pool needs the null block and one more, got {num_blocks}"
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.enable_events = enable_events
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.free_queue = FreeBlockQueue(self.blocks[1:])
        self._cached = [_CachedBlocks() for _ in range(num_groups)]
        self._events: list[KVCacheEvent] = []

    @property
    def num_free(self) -> int:
        return self.free_queue.num_free

    @property
    def usage(self) -> float:
        """Return the share of blocks in use, 0 to 1; the null block does not count."""
        return 1.0 - self.num_free / (self.num_blocks - 1) if self.num_blocks > 1 else 0.0

    def find(self, block_hash: bytes, group_id: int) -> KVCacheBlock | None:
        return self._cached[group_id].first.get(block_hash)

    def take(self, count: int) -> list[KVCacheBlock]:
        """Return `count` blocks with one reference each, evicting what they cached."""
        blocks = self.free_queue.pop_head(count)
        for block in blocks:
            if block.block_hash is not None:
                self._forget(block)
            block.ref_count = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to each cached block of a prefix hit; null blocks are passed over."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self.free_queue.remove(block)
            block.ref_count += 1

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference of each block, in the order in which they should be evicted.

        A block with a hash goes to the tail (evicted last), one without to the head (nothing is lost by its reuse).
        """
        for block in blocks:
            if block is self.null_block:
                continue
            assert block.ref_count > 0, f"block {block.block_id} freed twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.block_hash is None:
                    self.free_queue.prepend(block)
                else:
                    self.free_queue.append(block)

    def cache(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[bytes],
        group_id: int,
        block_size: int,
        parent_hash: bytes | None,
        token_ids: Sequence[int],
    ) -> None:
        """Enter full blocks under their hashes. token_ids: those of the blocks; read only if events are on.

        Null blocks are passed over. A second block of the same content is kept beside the first.
        """
        stored: list[int] = []
        for i, (block, block_hash) in enumerate(zip(blocks, block_hashes, strict=True)):
            if block is self.null_block or block.block_hash is not None:
                continue
            block.block_hash = block_hash
            block.group_id = group_id
            if self._cached[group_id].add(block_hash, block):
                stored.append(i)
        if not stored or not self.enable_events:
            return
        # One event for one unbroken run, which is the usual case; what was there before is not told again.
        runs = [(0, len(blocks))] if len(stored) == len(blocks) else [(i, i + 1) for i in stored]
        for first, last in runs:
            self._tell(
                BlockStored(
                    block_hashes=list(block_hashes[first:last]),
                    parent_block_hash=block_hashes[first - 1] if first else parent_hash,
                    token_ids=list(token_ids[first * block_size : last * block_size]),
                    block_size=block_size,
                    group_id=group_id,
                )
            )

    def forget(self, block_hashes: Iterable[bytes], group_id: int) -> None:
        """Take every block of these hashes out of the prefix cache (the content cannot be trusted)."""
        for block_hash in block_hashes:
            while (block := self.find(block_hash, group_id)) is not None:
                self._forget(block)

    def reset(self) -> bool:
        """Empty the prefix cache; return False and change nothing while any block is in use."""
        if self.num_free != self.num_blocks - 1:
            return False
        for block in self.blocks:
            block.block_hash = None
        for cached in self._cached:
            cached.clear()
        self._tell(AllBlocksCleared())
        return True

    def states(self) -> bytes:
        """Return every block's BlockState, a byte each: about 0.1 ms per thousand blocks, for a look from outside."""
        states = bytearray(self.num_blocks)
        for block in self.blocks:
            if block.ref_count:
                states[block.block_id] = BlockState.USED if block.ref_count == 1 else BlockState.SHARED
            elif block.block_hash is not None:
                states[block.block_id] = BlockState.CACHED
        states[self.null_block.block_id] = BlockState.NULL
        return bytes(states)

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call; if they were too many, only the last, behind an AllBlocksCleared."""
        events, self._events = self._events, []
        return events

    def _tell(self, event: KVCacheEvent) -> None:
        if not self.enable_events:
            return
        if len(self._events) == _MAX_EVENTS:
            self._events = [AllBlocksCleared()]  # so who follows them knows of too few blocks, and of none that is gone
        self._events.append(event)

    def _forget(self, block: KVCacheBlock) -> None:
        block_hash = block.block_hash
        assert block_hash is not None, "only a cached block can be forgotten"
        block.block_hash = None
        if self._cached[block.group_id].discard(block_hash, block):
            self._tell(BlockRemoved([block_hash], block.group_id))


class _CachedBlocks:
    """Hash -> blocks of one group. Nearly every hash has one block; further ones wait aside to take its place.

    Two requests that compute the same content at once, or a prompt whose last block had to be recomputed, give two
    blocks of one hash. They cannot be merged: block tables are append-only on the worker.
    """

    def __init__(self) -> None:
        self.first: dict[bytes, KVCacheBlock] = {}
        self._others: dict[bytes, list[KVCacheBlock]] = {}

    def add(self, block_hash: bytes, block: KVCacheBlock) -> bool:
        """Return True if the hash was not there before."""
        if self.first.setdefault(block_hash, block) is block:
            return True
        self._others.setdefault(block_hash, []).append(block)
        return False

    def discard(self, block_hash: bytes, block: KVCacheBlock) -> bool:
        """Return True if no block of this hash is left."""
        others = self._others.get(block_hash)
        if others is None:
            del self.first[block_hash]
            return True
        if self.first[block_hash] is block:
            self.first[block_hash] = others.pop()
        else:
            others.remove(block)
        if not others:
            del self._others[block_hash]
        return False

    def clear(self) -> None:
        self.first.clear()
        self._others.clear()
