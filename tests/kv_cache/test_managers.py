"""Managers and their coordinator: windows, hits, agreement between groups."""

from __future__ import annotations

import itertools
import random

import pytest

from octavo.kv_cache.block_pool import BlockPool
from octavo.kv_cache.coordinator import KVCacheCoordinator, hash_block_size, scheduler_block_size
from octavo.kv_cache.hashing import extend_block_hashes, root_hash
from octavo.kv_cache.managers import make_manager, num_peak_blocks
from octavo.types.kv_spec import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec


def full(block_size=4):
    return FullAttentionSpec(block_size, 1, 8)


def sliding(window, block_size=4):
    return SlidingWindowSpec(block_size, 1, 8, sliding_window=window)


def hashes(token_ids, block_size):
    result: list[bytes] = []
    extend_block_hashes(result, token_ids, block_size, root_hash())
    return result


def new_manager(spec, num_blocks=64, hash_size=None):
    pool = BlockPool(num_blocks, 1, enable_caching=True)
    return pool, make_manager(spec, 0, pool, hash_size or spec.block_size, 1000)


def forget(pool, blocks):
    for block in blocks:
        pool.forget([block.block_hash], block.group_id)


def table(manager, request_id="r"):
    return [block.block_id for block in manager.blocks(request_id)]


def test_blocks_are_given_only_when_slots_run_out():
    _, manager = new_manager(full())
    manager.adopt("r", [])
    assert manager.allocate("r", 3) == [1]
    assert manager.allocate("r", 4) == []
    assert manager.allocate("r", 9) == [2, 3]


@pytest.mark.parametrize("window", [1, 2, 4, 5, 7, 8])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_window_keeps_exactly_the_blocks_that_the_next_token_reads(window, size):
    _, manager = new_manager(sliding(window, size))
    manager.adopt("r", [])
    manager.allocate("r", 30)
    for position in range(30):
        manager.drop_unneeded("r", position)
        read = {p // size for p in range(max(position - window + 1, 0), 30)}
        assert {i for i, block_id in enumerate(table(manager)) if block_id} == read


def test_blocks_out_of_the_window_are_free_again_and_still_cached():
    pool, manager = new_manager(sliding(5))
    tokens = list(range(20))
    manager.adopt("r", [])
    manager.allocate("r", 20)
    manager.cache("r", hashes(tokens, 4), tokens, 20)
    before = pool.num_free
    manager.drop_unneeded("r", 20)
    assert pool.num_free == before + 4
    assert pool.find(hashes(tokens, 4)[0], 0) is not None
    manager.free("r")
    assert pool.num_free == 63


def test_full_hit_ends_at_the_first_missing_block():
    pool, manager = new_manager(full())
    tokens = list(range(20))
    chain = hashes(tokens, 4)
    manager.adopt("r", [])
    manager.allocate("r", 20)
    manager.cache("r", chain, tokens, 20)
    forget(pool, [manager.blocks("r")[3]])
    assert [b.block_id for b in manager.find_hit(chain, 20, 4)] == [1, 2, 3]
    assert [b.block_id for b in manager.find_hit(chain, 11, 4)] == [1, 2]
    assert [b.block_id for b in manager.find_hit(chain, 20, 8)] == [1, 2]


def test_sliding_hit_needs_only_its_window():
    pool, manager = new_manager(sliding(6))  # the next token reads 5 keys: 2 blocks
    tokens = list(range(24))
    chain = hashes(tokens, 4)
    manager.adopt("r", [])
    manager.allocate("r", 24)
    manager.cache("r", chain, tokens, 24)
    blocks = list(manager.blocks("r"))
    forget(pool, blocks[0:2])
    assert [b.block_id for b in manager.find_hit(chain, 24, 4)] == [0, 0, 0, 0, 5, 6]
    forget(pool, [blocks[4]])
    assert [b.block_id for b in manager.find_hit(chain, 24, 4)] == [0, 0, 3, 4]
    forget(pool, [blocks[3]])
    assert manager.find_hit(chain, 24, 4) == []


def brute_force_sliding_hit(present, window, size, num_tokens, alignment):
    for length in range(num_tokens // alignment * alignment, 0, -alignment):
        needed = {p // size for p in range(max(length - window + 1, 0), length)}
        if needed <= present:
            return length
    return 0


def test_sliding_hit_is_the_longest_whatever_is_cached():
    chance = random.Random(1)
    for _ in range(400):
        size = chance.choice([1, 2, 4])
        window = chance.randint(1, 11)
        alignment = size * chance.choice([1, 2, 3])
        pool, manager = new_manager(sliding(window, size))
        tokens = list(range(24))
        chain = hashes(tokens, size)
        manager.adopt("r", [])
        manager.allocate("r", 24)
        manager.cache("r", chain, tokens, 24)
        present = {i for i in range(24 // size) if chance.random() < 0.7}
        forget(pool, [block for i, block in enumerate(manager.blocks("r")) if i not in present])
        num_tokens = chance.randint(0, 24)
        hit = manager.find_hit(chain, num_tokens, alignment)
        expected = brute_force_sliding_hit(present, window, size, num_tokens, alignment)
        assert len(hit) * size == expected
        needed = {p // size for p in range(max(expected - window + 1, 0), expected)}
        assert {i for i, block in enumerate(hit) if block.block_id} == needed


def test_freed_prefix_outlives_its_continuation():
    pool, manager = new_manager(full(), num_blocks=5)
    tokens = list(range(16))
    chain = hashes(tokens, 4)
    manager.adopt("r", [])
    manager.allocate("r", 16)
    manager.cache("r", chain, tokens, 16)
    manager.free("r")
    pool.take(2)
    assert len(manager.find_hit(chain, 16, 4)) == 2


def test_large_blocks_are_found_by_small_hashes():
    pool, manager = new_manager(full(8), hash_size=2)
    tokens = list(range(24))
    chain = hashes(tokens, 2)
    manager.adopt("r", [])
    manager.allocate("r", 24)
    manager.cache("r", chain, tokens, 23)  # two full blocks
    assert len(manager.find_hit(chain, 24, 8)) == 2
    assert len(manager.find_hit(hashes([*tokens[:12], 99, *tokens[13:]], 2), 24, 8)) == 1
    assert pool.num_free == 60


def test_peak_of_a_window_covers_any_alignment():
    for window, size, chunk, length in itertools.product([1, 3, 6], [1, 2, 4], [1, 5], [10, 30]):
        spec = sliding(window, size)
        most = 0
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            first = max(start - window + 1, 0) // size
            most = max(most, -(-end // size) - first)
        assert most <= num_peak_blocks(spec, length, chunk) <= -(-length // size)


# -- coordinator -------------------------------------------------------------------------------------------------------


def new_coordinator(*specs, num_blocks=200):
    groups = [KVCacheGroupSpec((f"l{i}",), spec) for i, spec in enumerate(specs)]
    pool = BlockPool(num_blocks, len(groups), enable_caching=True)
    return pool, KVCacheCoordinator(groups, pool, 1000), groups


def test_block_sizes_resolve_to_common_divisor_and_multiple():
    _, _, groups = new_coordinator(full(6), sliding(5, 4))
    assert hash_block_size(groups) == 2
    assert scheduler_block_size(groups) == 12


def test_hybrid_hit_is_the_longest_that_all_groups_have():
    chance = random.Random(2)
    specs = (full(4), sliding(6, 2), sliding(9, 4))
    for _ in range(300):
        pool, coordinator, groups = new_coordinator(*specs)
        tokens = list(range(32))
        chain = hashes(tokens, hash_block_size(groups))
        coordinator.adopt("r", ([], [], []))
        coordinator.allocate("r", 32)
        coordinator.cache("r", chain, tokens, 32)
        present = []
        for manager in coordinator.managers:
            kept = {i for i in range(32 // manager.block_size) if chance.random() < 0.85}
            forget(pool, [block for i, block in enumerate(manager.blocks("r")) if i not in kept])
            present.append(kept)
        max_tokens = chance.randint(0, 32)
        hit, num_tokens = coordinator.find_hit(chain, max_tokens)
        expected = 0
        for length in range(max_tokens // 4 * 4, 0, -4):
            windows = (10**6, 6, 9)
            if all(
                {p // m.block_size for p in range(max(length - w + 1, 0), length)} <= kept
                for m, w, kept in zip(coordinator.managers, windows, present, strict=True)
            ):
                expected = length
                break
        assert num_tokens == expected
        assert [len(b) * m.block_size for b, m in zip(hit, coordinator.managers, strict=True)] == [expected] * 3
