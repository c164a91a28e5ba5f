"""Blocks: free order, references, eviction, duplicates, events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kv_cache import block_pool
from octavo.kv_cache.block import FreeBlockQueue, KVCacheBlock
from octavo.kv_cache.block_pool import BlockPool
from octavo.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored


def ids(blocks):
    return [block.block_id for block in blocks]


def cache(pool, blocks, *names, group_id=0, parent=None):
    pool.cache(blocks, [name.encode() for name in names], group_id, 2, parent, list(range(2 * len(blocks))))


@given(st.lists(st.sampled_from(["pop", "remove", "append", "prepend"]), max_size=60), st.randoms())
@settings(max_examples=150, deadline=None)
def test_free_queue_behaves_like_a_list(operations, chance):
    queue = FreeBlockQueue([KVCacheBlock(i) for i in range(5)])
    model, out = list(queue), []
    for operation in operations:
        if operation == "pop" and model:
            count = chance.randint(1, len(model))
            taken = queue.pop_head(count)
            assert taken == model[:count]
            out += taken
            del model[:count]
        elif operation == "remove" and model:
            block = chance.choice(model)
            queue.remove(block)
            model.remove(block)
            out.append(block)
        elif out and operation == "append":
            model.append(out.pop())
            queue.append(model[-1])
        elif out and operation == "prepend":
            model.insert(0, out.pop())
            queue.prepend(model[0])
        assert list(queue) == model
        assert queue.num_free == len(model)


def test_null_block_is_never_handed_out():
    pool = BlockPool(5, 1, enable_caching=True)
    assert ids(pool.take(4)) == [1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.usage == 1.0


def test_freed_cached_block_is_evicted_last_and_uncached_first():
    pool = BlockPool(5, 1, enable_caching=True)
    a, b = pool.take(2)
    cache(pool, [a], "a")
    pool.free([a])
    pool.free([b])
    assert ids(pool.take(4)) == [b.block_id, 3, 4, a.block_id]
    assert pool.find(b"a", 0) is None, "a reused block must not be found"


def test_least_recently_freed_block_is_evicted_first():
    pool = BlockPool(4, 1, enable_caching=True)
    blocks = pool.take(3)
    cache(pool, blocks, "a", "b", "c")
    pool.free([blocks[1]])
    pool.free([blocks[0]])
    pool.free([blocks[2]])
    pool.take(1)
    assert pool.find(b"b", 0) is None
    assert pool.find(b"a", 0) is blocks[0]
    assert pool.find(b"c", 0) is blocks[2]


def test_touched_block_leaves_the_free_queue_until_all_references_are_gone():
    pool = BlockPool(3, 1, enable_caching=True)
    (block,) = pool.take(1)
    cache(pool, [block], "a")
    pool.free([block])
    pool.touch([block, pool.null_block])
    pool.touch([block])
    assert (block.ref_count, pool.num_free) == (2, 1)
    pool.free([block])
    assert pool.num_free == 1
    pool.free([block])
    assert pool.num_free == 2
    assert pool.null_block.ref_count == 0


def test_double_free_is_caught():
    pool = BlockPool(3, 1, enable_caching=True)
    blocks = pool.take(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks)


def test_groups_do_not_find_each_others_blocks():
    pool = BlockPool(3, 2, enable_caching=True)
    cache(pool, pool.take(1), "a", group_id=1)
    assert pool.find(b"a", 0) is None
    assert pool.find(b"a", 1) is not None


def test_second_block_of_the_same_content_survives_the_first():
    """A duplicate whose original is evicted must still be found, or what follows it in the chain is lost."""
    pool = BlockPool(3, 1, enable_caching=True)
    first, second = pool.take(2)
    cache(pool, [first], "a")
    cache(pool, [second], "a")
    assert pool.find(b"a", 0) is first
    pool.free([first])
    pool.take(1)
    assert pool.find(b"a", 0) is second
    pool.forget([b"a"], 0)
    assert pool.find(b"a", 0) is None


def test_forgotten_content_is_gone_with_all_its_copies():
    pool = BlockPool(3, 1, enable_caching=True)
    for block in pool.take(2):
        cache(pool, [block], "a")
    pool.forget([b"a", b"unknown"], 0)
    assert pool.find(b"a", 0) is None
    assert all(block.block_hash is None for block in pool.blocks)


def test_reset_needs_every_block_free():
    pool = BlockPool(3, 1, enable_caching=True)
    blocks = pool.take(2)
    cache(pool, blocks, "a", "b")
    assert not pool.reset()
    assert pool.find(b"a", 0) is not None
    pool.free(blocks)
    assert pool.reset()
    assert pool.find(b"a", 0) is None
    assert all(block.block_hash is None for block in pool.blocks)


def test_events_follow_the_cache_content():
    pool = BlockPool(3, 1, enable_caching=True, enable_events=True)
    blocks = pool.take(2)
    cache(pool, blocks, "a", "b", parent=b"p")
    cache(pool, blocks, "a", "b", parent=b"p")  # known already
    assert pool.take_events() == [BlockStored([b"a", b"b"], b"p", [0, 1, 2, 3], 2, 0)]
    pool.free(reversed(blocks))
    pool.take(1)
    assert pool.take_events() == [BlockRemoved([b"b"], 0)]
    pool.free([blocks[1]])
    pool.reset()
    assert pool.take_events() == [AllBlocksCleared()]
    assert pool.take_events() == []


def test_event_of_a_half_known_run_tells_only_what_is_new():
    pool = BlockPool(5, 1, enable_caching=True, enable_events=True)
    cache(pool, pool.take(1), "a")
    pool.take_events()
    cache(pool, pool.take(3), "a", "b", "c")
    assert pool.take_events() == [BlockStored([b"b"], b"a", [2, 3], 2, 0), BlockStored([b"c"], b"b", [4, 5], 2, 0)]


def test_events_that_nobody_takes_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(block_pool, "_MAX_EVENTS", 4)
    pool = BlockPool(9, 1, enable_caching=True, enable_events=True)
    for i, block in enumerate(pool.take(6)):
        cache(pool, [block], f"hash{i}")
    cleared, *last = pool.take_events()
    assert cleared == AllBlocksCleared()
    assert [event.block_hashes for event in last] == [[b"hash4"], [b"hash5"]]
