"""BlockPool.states: one byte a block, true through its whole life."""

from __future__ import annotations

from octavo.kv_cache.block_pool import BlockPool
from octavo.types.stats import BlockState

FREE, CACHED, USED, SHARED, NULL = map(int, BlockState)


def test_states_follow_blocks_from_free_to_used_shared_cached_and_evicted():
    pool = BlockPool(4, num_groups=1, enable_caching=True)
    assert list(pool.states()) == [NULL, FREE, FREE, FREE]
    first, second = pool.take(2)
    pool.cache([first], [b"hash"], 0, 2, None, [1, 2])
    pool.touch([first])
    assert list(pool.states()) == [NULL, SHARED, USED, FREE]
    pool.free([first, second])
    assert list(pool.states()) == [NULL, USED, FREE, FREE]
    pool.free([first])
    assert list(pool.states()) == [NULL, CACHED, FREE, FREE]
    pool.take(3)
    assert list(pool.states()) == [NULL, USED, USED, USED]
