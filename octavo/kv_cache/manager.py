"""KVCacheManager: the scheduler's view of the KV cache. Speaks requests and tokens; keeps blocks to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.config.configs import CacheConfig
from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.coordinator import HitBlocks, KVCacheCoordinator, hash_block_size
from octavo.kv_cache.hashing import extend_block_hashes
from octavo.types.kv_events import KVCacheEvent
from octavo.types.kv_spec import KVCacheConfig
from octavo.types.stats import PrefixCacheStats
from octavo.types.step import BlockIds


class CacheableRequest(Protocol):
    """What the cache reads of a request.

    all_token_ids: prompt and output so far, one growing list
    block_hashes: grown by the cache, lazily
    """

    @property
    def request_id(self) -> str: ...
    @property
    def all_token_ids(self) -> list[int]: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def block_hashes(self) -> list[bytes]: ...
    @property
    def root_hash(self) -> bytes: ...
    @property
    def skip_reading_prefix_cache(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks of a request's first num_tokens tokens; valid until the next allocation."""

    blocks: HitBlocks
    num_tokens: int


class KVCacheManager:
    """Gives requests the slots for their tokens, finds cached prefixes, and frees.

    A request's slots:  [hit | computed here | new | lookahead)
    Blocks enter the prefix cache in `cache_blocks`, not with their allocation: until the step is settled a request
    may still lose its place in it, and a block that was never computed must not be found.

    max_step_tokens: the most tokens that one step adds to one sequence, lookahead slots included
    max_model_len: sequences never get more slots than this
    """

    def __init__(
        self, kv_cache_config: KVCacheConfig, cache_config: CacheConfig, max_step_tokens: int, max_model_len: int
    ) -> None:
        groups = kv_cache_config.groups
        self.enable_caching = cache_config.enable_prefix_caching
        self.watermark_blocks = int(cache_config.watermark * kv_cache_config.num_blocks)
        self._max_model_len = max_model_len
        self._hash_block_size = hash_block_size(groups)
        self._smallest_block_size = min((group.spec.block_size for group in groups), default=0)
        self._pool = BlockPool(
            kv_cache_config.num_blocks, len(groups), self.enable_caching, cache_config.enable_kv_events
        )
        self._coordinator = KVCacheCoordinator(groups, self._pool, max_step_tokens)
        self._no_hit = PrefixHit(tuple([] for _ in groups), 0)
        self._num_slots: dict[str, int] = {}  # slots that all groups have for a request
        self._next_caching: dict[str, int] = {}  # computed tokens at which a request has another full block
        self._prefix_cache_stats = PrefixCacheStats()

    @property
    def usage(self) -> float:
        return self._pool.usage

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    def get_computed_blocks(self, request: CacheableRequest) -> PrefixHit:
        """Find the longest cached prefix. At least one token is left to compute: its logits are needed."""
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self._no_hit
        self._extend_hashes(request)
        return PrefixHit(*self._coordinator.find_hit(request.block_hashes, len(request.all_token_ids) - 1))

    def record_hit(self, request: CacheableRequest, hit: PrefixHit) -> None:
        """Count an admitted request's prefix lookup, if it made one."""
        if self.enable_caching and not request.skip_reading_prefix_cache:
            stats = self._prefix_cache_stats
            stats.queries += len(request.all_token_ids)
            stats.hits += hit.num_tokens

    def fits_whole(self, request: CacheableRequest, hit: PrefixHit, num_reserved_blocks: int) -> bool:
        """Tell whether all known tokens of a waiting request fit beside num_reserved_blocks."""
        needed = self._coordinator.num_blocks_to_admit(hit.blocks, len(request.all_token_ids))
        return needed <= self._pool.num_free - num_reserved_blocks

    def num_blocks_to_finish(self, request: CacheableRequest) -> int:
        """Return how many more blocks a running request may take until all its known tokens are computed."""
        return self._coordinator.num_blocks_to_finish(request.request_id, len(request.all_token_ids))

    def start(
        self,
        request: CacheableRequest,
        hit: PrefixHit,
        num_new_tokens: int,
        num_lookahead_tokens: int = 0,
        num_reserved_blocks: int = 0,
    ) -> BlockIds | None:
        """Give a waiting request its first slots; return its block table, or None if too few blocks are free."""
        num_slots = min(hit.num_tokens + num_new_tokens + num_lookahead_tokens, self._max_model_len)
        needed = self._coordinator.num_blocks_to_start(hit.blocks, num_slots)
        if needed > self._pool.num_free - num_reserved_blocks:
            return None
        request_id = request.request_id
        self._coordinator.adopt(request_id, hit.blocks)
        self._coordinator.allocate(request_id, num_slots)
        self._num_slots[request_id] = self._round_up(num_slots)
        self._next_caching[request_id] = hit.num_tokens + self._smallest_block_size
        return self._coordinator.block_ids(request_id)

    def allocate_slots(
        self, request: CacheableRequest, num_new_tokens: int, num_lookahead_tokens: int = 0
    ) -> BlockIds | None:
        """Give a running request slots for num_new_tokens more; return its new blocks (often none).

        Returns None, and allocates nothing, if too few blocks are free.
        """
        request_id = request.request_id
        num_slots = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
        if num_slots <= self._num_slots[request_id]:
            return NO_BLOCKS  # nearly every decode step
        num_slots = min(num_slots, self._max_model_len)
        self._coordinator.drop_unneeded(request_id, request.num_computed_tokens)
        if self._coordinator.num_blocks_to_extend(request_id, num_slots) > self._pool.num_free:
            return None
        new_block_ids = self._coordinator.allocate(request_id, num_slots)
        self._num_slots[request_id] = self._round_up(num_slots)
        return new_block_ids

    def cache_blocks(self, request: CacheableRequest) -> None:
        """Offer the request's full blocks to the prefix cache, once they are sure to be computed.

        Only known tokens count: a draft beyond them may be rejected.
        """
        num_tokens = request.num_computed_tokens
        if num_tokens < self._next_caching[request.request_id] or not self.enable_caching:
            return
        num_tokens = min(num_tokens, len(request.all_token_ids))
        self._extend_hashes(request)
        self._coordinator.cache(request.request_id, request.block_hashes, request.all_token_ids, num_tokens)
        size = self._smallest_block_size
        self._next_caching[request.request_id] = (num_tokens // size + 1) * size

    def forget(self, request: CacheableRequest) -> None:
        """Take a request's content out of the prefix cache: what the model wrote cannot be trusted.

        By hash and not by block: the request may have lost its blocks since.
        """
        self._coordinator.forget(request.block_hashes)

    def free(self, request: CacheableRequest) -> None:
        """Give all blocks of a request back; harmless if it has none."""
        if self._num_slots.pop(request.request_id, None) is not None:
            del self._next_caching[request.request_id]
            self._coordinator.free(request.request_id)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; return False and change nothing while any request holds blocks."""
        return self._pool.reset()

    def block_states(self) -> bytes:
        """Return every block's BlockState, a byte each."""
        return self._pool.states()

    def take_events(self) -> list[KVCacheEvent]:
        return self._pool.take_events()

    def take_prefix_cache_stats(self) -> PrefixCacheStats:
        """Return the counts since the last call."""
        stats, self._prefix_cache_stats = self._prefix_cache_stats, PrefixCacheStats()
        return stats

    def _extend_hashes(self, request: CacheableRequest) -> None:
        if len(request.all_token_ids) - len(request.block_hashes) * self._hash_block_size >= self._hash_block_size:
            extend_block_hashes(request.block_hashes, request.all_token_ids, self._hash_block_size, request.root_hash)

    def _round_up(self, num_slots: int) -> int:
        """Return the slots that every group has once num_slots were allocated."""
        return min((-(-num_slots // size) * size for size in self._coordinator.block_sizes), default=num_slots)


NO_BLOCKS: BlockIds = ()
