"""The managers of all groups as one, and the prefix length that all groups can agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.managers import make_manager
from octavo.types.kv_spec import KVCacheGroupSpec
from octavo.types.step import BlockIds

HitBlocks = tuple[list[KVCacheBlock], ...]  # one list per group


def hash_block_size(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the tokens per block hash: every group's block is a whole number of them."""
    return math.gcd(*(group.spec.block_size for group in groups))


def scheduler_block_size(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the tokens in which prefix hits are counted: a whole number of blocks in every group."""
    return math.lcm(*(group.spec.block_size for group in groups))


class KVCacheCoordinator:
    """Runs every operation on all groups' managers."""

    def __init__(self, groups: Sequence[KVCacheGroupSpec], pool: BlockPool, max_step_tokens: int) -> None:
        self.alignment = scheduler_block_size(groups)
        self._pool = pool
        hash_size = hash_block_size(groups)
        self.managers = tuple(
            make_manager(group.spec, group_id, pool, hash_size, max_step_tokens)
            for group_id, group in enumerate(groups)
        )
        self.block_sizes = tuple(group.spec.block_size for group in groups)

    def find_hit(self, block_hashes: Sequence[bytes], max_tokens: int) -> tuple[HitBlocks, int]:
        """Return the cached blocks of the longest prefix of at most max_tokens tokens, and its length.

        It is shortened until every group has it.
        """
        num_tokens = max_tokens // self.alignment * self.alignment
        hits: list[list[KVCacheBlock]] = [[] for _ in self.managers]
        agreed = 0  # groups in a row that have the current length
        group = 0
        while agreed < len(self.managers):
            manager = self.managers[group]
            hits[group] = manager.find_hit(block_hashes, num_tokens, self.alignment)
            found = len(hits[group]) * manager.block_size
            agreed = agreed + 1 if found == num_tokens else 1
            num_tokens = found
            group = (group + 1) % len(self.managers)
        return tuple(hits), num_tokens

    def num_blocks_to_start(self, hit: HitBlocks, num_slots: int) -> int:
        """Return how many free blocks a request with this hit takes for slots 0 .. num_slots - 1."""
        total = 0
        for manager, blocks in zip(self.managers, hit, strict=True):
            total += manager.num_new_blocks(len(blocks), num_slots)
            total += sum(block.ref_count == 0 for block in blocks if block is not self._pool.null_block)
        return total

    def num_blocks_to_extend(self, request_id: str, num_slots: int) -> int:
        """Return how many free blocks a running request takes for slots 0 .. num_slots - 1."""
        return sum(
            max(manager.num_new_blocks(len(manager.blocks(request_id)), num_slots), 0) for manager in self.managers
        )

    def num_blocks_to_finish(self, request_id: str, num_tokens: int) -> int:
        """Return how many more blocks a running request may come to hold until num_tokens are computed."""
        return sum(
            max(manager.num_peak_blocks(num_tokens) - manager.num_live_blocks(request_id), 0)
            for manager in self.managers
        )

    def num_blocks_to_admit(self, hit: HitBlocks, num_tokens: int) -> int:
        """Return the most free blocks that a request with this hit takes until num_tokens are computed."""
        return sum(
            manager.num_peak_blocks(num_tokens) - manager.num_lastingly_shared(blocks)
            for manager, blocks in zip(self.managers, hit, strict=True)
        )

    def adopt(self, request_id: str, hit: HitBlocks) -> None:
        for manager, blocks in zip(self.managers, hit, strict=True):
            manager.adopt(request_id, blocks)

    def drop_unneeded(self, request_id: str, num_computed_tokens: int) -> None:
        for manager in self.managers:
            manager.drop_unneeded(request_id, num_computed_tokens)

    def allocate(self, request_id: str, num_slots: int) -> BlockIds:
        return tuple(manager.allocate(request_id, num_slots) for manager in self.managers)

    def cache(self, request_id: str, block_hashes: Sequence[bytes], token_ids: Sequence[int], num_tokens: int) -> None:
        for manager in self.managers:
            manager.cache(request_id, block_hashes, token_ids, num_tokens)

    def forget(self, block_hashes: Sequence[bytes]) -> None:
        for manager in self.managers:
            manager.forget(block_hashes)

    def free(self, request_id: str) -> None:
        for manager in self.managers:
            manager.free(request_id)

    def block_ids(self, request_id: str) -> BlockIds:
        return tuple([block.block_id for block in manager.blocks(request_id)] for manager in self.managers)
