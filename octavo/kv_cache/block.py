"""One block of KV cache and the O(1) queue of free blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class KVCacheBlock:
    """A block's bookkeeping. `block_hash` is set while the prefix cache may hand the block out.

    ref_count: requests whose block table holds the block; 0 means that it sits in the free queue
    group_id: the group whose layers' keys it holds; meaningful while it is hashed
    """

    __slots__ = ("block_hash", "block_id", "group_id", "next_free", "previous_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: bytes | None = None
        self.group_id = 0
        self.previous_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock(id={self.block_id}, refs={self.ref_count}, hashed={self.block_hash is not None})"


class FreeBlockQueue:
    """Free blocks in order of reuse: popped at the head, least recently used first.

    Doubly linked through the blocks themselves, so that a prefix hit takes its block out of the middle in O(1).
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._ends = KVCacheBlock(-1)  # a ring: ends.next is the head, ends.previous the tail
        self._ends.next_free = self._ends.previous_free = self._ends
        self.num_free = 0
        for block in blocks:
            self.append(block)

    def pop_head(self, count: int) -> list[KVCacheBlock]:
        """Take `count` blocks off the head; the caller has checked that there are so many."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        blocks = []
        for _ in range(count):
            block = _linked(self._ends.next_free)
            self.remove(block)
            blocks.append(block)
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        previous, following = _linked(block.previous_free), _linked(block.next_free)
        previous.next_free, following.previous_free = following, previous
        block.previous_free = block.next_free = None
        self.num_free -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the tail: reused last."""
        self._insert_after(_linked(self._ends.previous_free), block)

    def prepend(self, block: KVCacheBlock) -> None:
        """Put a block at the head: reused first."""
        self._insert_after(self._ends, block)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = _linked(self._ends.next_free)
        while block is not self._ends:
            yield block
            block = _linked(block.next_free)

    def _insert_after(self, previous: KVCacheBlock, block: KVCacheBlock) -> None:
        assert block.next_free is None, f"block {block.block_id} is already free"
        following = _linked(previous.next_free)
        previous.next_free = following.previous_free = block
        block.previous_free, block.next_free = previous, following
        self.num_free += 1


def _linked(block: KVCacheBlock | None) -> KVCacheBlock:
    assert block is not None, "a block that is not in the free queue was treated as free"
    return block
