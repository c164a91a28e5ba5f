"""One manager per kind of layer: which blocks a request of this group holds, needs, may drop, and can find cached."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kv_cache.block import KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.types.kv_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec


class FullAttentionManager:
    """Block tables of a group whose layers read every earlier key.

    hash_block_size: tokens per entry of a request's block_hashes; divides block_size
    max_step_tokens: the most tokens (with lookahead) that one step adds to a sequence
    """

    def __init__(
        self, spec: KVCacheSpec, group_id: int, pool: BlockPool, hash_block_size: int, max_step_tokens: int
    ) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.group_id = group_id
        self.max_step_tokens = max_step_tokens
        self._pool = pool
        self._hashes_per_block = spec.block_size // hash_block_size
        self._blocks: dict[str, list[KVCacheBlock]] = {}
        self._num_cached: dict[str, int] = {}  # leading blocks of a request already offered to the prefix cache

    def blocks(self, request_id: str) -> Sequence[KVCacheBlock]:
        return self._blocks.get(request_id, ())

    def num_peak_blocks(self, num_tokens: int) -> int:
        """Return the most blocks that a sequence holds at any time until num_tokens are computed."""
        return num_peak_blocks(self.spec, num_tokens, self.max_step_tokens)

    def num_live_blocks(self, request_id: str) -> int:
        return len(self._blocks.get(request_id, ()))

    def num_lastingly_shared(self, hit_blocks: Sequence[KVCacheBlock]) -> int:
        """Return how many blocks of a hit others hold already, so that they take nothing from the free ones."""
        return sum(block.ref_count > 0 for block in hit_blocks)

    def num_new_blocks(self, num_held: int, num_slots: int) -> int:
        """Return how many blocks a table of num_held blocks lacks for slots 0 .. num_slots - 1; negative: has more."""
        return -(-num_slots // self.block_size) - num_held

    def adopt(self, request_id: str, hit_blocks: Sequence[KVCacheBlock]) -> None:
        """Start a request's table with the blocks of a prefix hit."""
        assert request_id not in self._blocks, f"request {request_id} already holds blocks"
        self._pool.touch(hit_blocks)
        self._blocks[request_id] = list(hit_blocks)
        self._num_cached[request_id] = len(hit_blocks)

    def allocate(self, request_id: str, num_slots: int) -> list[int]:
        """Append the blocks that the request lacks for slots 0 .. num_slots - 1; return their ids."""
        blocks = self._blocks[request_id]
        count = self.num_new_blocks(len(blocks), num_slots)
        if count <= 0:
            return []
        new_blocks = self._pool.take(count)
        blocks.extend(new_blocks)
        return [block.block_id for block in new_blocks]

    def drop_unneeded(self, request_id: str, num_computed_tokens: int) -> None:
        """Free the blocks that no token from position num_computed_tokens on reads."""

    def cache(self, request_id: str, block_hashes: Sequence[bytes], token_ids: Sequence[int], num_tokens: int) -> None:
        """Offer the full blocks among the first num_tokens tokens to the prefix cache."""
        first, last = self._num_cached[request_id], num_tokens // self.block_size
        if first >= last:
            return
        step = self._hashes_per_block
        self._pool.cache(
            self._blocks[request_id][first:last],
            block_hashes[(first + 1) * step - 1 : last * step : step],
            self.group_id,
            self.block_size,
            block_hashes[first * step - 1] if first else None,
            token_ids[first * self.block_size : last * self.block_size] if self._pool.enable_events else (),
        )
        self._num_cached[request_id] = last

    def forget(self, block_hashes: Sequence[bytes]) -> None:
        """Take every block of a sequence out of the prefix cache."""
        step = self._hashes_per_block
        self._pool.forget(block_hashes[step - 1 :: step], self.group_id)

    def free(self, request_id: str) -> None:
        """Give the request's blocks back, the last first: a prefix outlives what follows it."""
        blocks = self._blocks.pop(request_id, [])
        self._num_cached.pop(request_id, None)
        self._pool.free(reversed(blocks))

    def find_hit(self, block_hashes: Sequence[bytes], num_tokens: int, alignment: int) -> list[KVCacheBlock]:
        """Return the cached blocks of the longest usable prefix of at most num_tokens tokens.

        The prefix length is a multiple of alignment (itself a multiple of the block size).
        """
        step = self._hashes_per_block
        hit: list[KVCacheBlock] = []
        for i in range(num_tokens // self.block_size):
            block = self._pool.find(block_hashes[(i + 1) * step - 1], self.group_id)
            if block is None:
                break
            hit.append(block)
        del hit[len(hit) - len(hit) % (alignment // self.block_size) :]
        return hit


class SlidingWindowManager(FullAttentionManager):
    """Block tables of a group whose layers read only the last `sliding_window` keys, the query's own among them."""

    def __init__(
        self, spec: SlidingWindowSpec, group_id: int, pool: BlockPool, hash_block_size: int, max_step_tokens: int
    ) -> None:
        super().__init__(spec, group_id, pool, hash_block_size, max_step_tokens)
        self._window = spec.sliding_window
        self._num_dropped: dict[str, int] = {}  # leading blocks of a request that are null

    def num_live_blocks(self, request_id: str) -> int:
        return super().num_live_blocks(request_id) - self._num_dropped.get(request_id, 0)

    def num_lastingly_shared(self, hit_blocks: Sequence[KVCacheBlock]) -> int:
        return 0  # the window soon leaves them behind, and own blocks take their place

    def adopt(self, request_id: str, hit_blocks: Sequence[KVCacheBlock]) -> None:
        super().adopt(request_id, hit_blocks)
        num_dropped = 0
        while num_dropped < len(hit_blocks) and hit_blocks[num_dropped] is self._pool.null_block:
            num_dropped += 1
        self._num_dropped[request_id] = num_dropped

    def drop_unneeded(self, request_id: str, num_computed_tokens: int) -> None:
        blocks, first = self._blocks[request_id], self._num_dropped[request_id]
        # the window of the first token still to run counts: of a chunk of several, later ones begin later
        last = max(num_computed_tokens - self._window + 1, 0) // self.block_size
        if first >= last:
            return
        dropped = blocks[first:last]
        blocks[first:last] = [self._pool.null_block] * (last - first)
        self._num_dropped[request_id] = last
        self._pool.free(reversed(dropped))

    def free(self, request_id: str) -> None:
        super().free(request_id)
        self._num_dropped.pop(request_id, None)

    def find_hit(self, block_hashes: Sequence[bytes], num_tokens: int, alignment: int) -> list[KVCacheBlock]:
        """Return the longest prefix whose last window is cached; blocks before that window are null.

        The next token reads window - 1 keys before itself; only these need to be there.
        """
        num_wanted = -(-(self._window - 1) // self.block_size)
        step = self._hashes_per_block
        run: list[KVCacheBlock] = []  # contiguous cached blocks, the last first
        end = num_tokens // alignment * (alignment // self.block_size)
        i = end
        while i > 0 and len(run) < num_wanted:
            i -= 1
            block = self._pool.find(block_hashes[(i + 1) * step - 1], self.group_id)
            if block is not None:
                run.append(block)
                continue
            run.clear()
            end = i * self.block_size // alignment * (alignment // self.block_size)
            i = end
        return [self._pool.null_block] * (end - len(run)) + run[::-1]


def num_peak_blocks(spec: KVCacheSpec, num_tokens: int, max_step_tokens: int) -> int:
    """Return the most blocks of one group that a sequence of num_tokens tokens holds at any time.

    A sliding window holds its window - 1 keys and the step's tokens, plus a block because neither end is aligned.
    """
    num_blocks = -(-num_tokens // spec.block_size)
    if isinstance(spec, SlidingWindowSpec):
        span = spec.sliding_window - 1 + max_step_tokens
        return min(num_blocks, -(-span // spec.block_size) + 1)
    return num_blocks


def make_manager(
    spec: KVCacheSpec, group_id: int, pool: BlockPool, hash_block_size: int, max_step_tokens: int
) -> FullAttentionManager:
    """Return the manager for a group's spec."""
    if isinstance(spec, SlidingWindowSpec):
        return SlidingWindowManager(spec, group_id, pool, hash_block_size, max_step_tokens)
    assert isinstance(spec, FullAttentionSpec)
    return FullAttentionManager(spec, group_id, pool, hash_block_size, max_step_tokens)
