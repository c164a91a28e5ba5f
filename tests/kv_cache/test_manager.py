"""KVCacheManager: slots, hits, caching at the right time."""

from __future__ import annotations

from dataclasses import replace

from octavo import SamplingParams
from octavo.config.configs import CacheConfig
from octavo.kv_cache.manager import KVCacheManager
from tests.scheduler.helpers import full, kv_config, make_request, sliding


def new_manager(num_blocks=50, *specs, caching=True, **cache_fields):
    config = CacheConfig(4, 0, enable_prefix_caching=caching, **cache_fields)
    return KVCacheManager(kv_config(num_blocks, *specs), config, max_step_tokens=64, max_model_len=100)


def compute(manager, request):
    """Admit a request and compute all its tokens; return how many were cached."""
    hit = manager.get_computed_blocks(request)
    assert manager.start(request, hit, request.num_tokens - hit.num_tokens) is not None
    request.num_computed_tokens = request.num_tokens
    manager.cache_blocks(request)
    return hit.num_tokens


def test_same_prompt_hits_all_full_blocks_but_leaves_a_token_to_compute():
    for num_tokens, expected in ((3, 0), (4, 0), (5, 4), (8, 4), (9, 8)):
        manager = new_manager()
        assert compute(manager, make_request("a", range(num_tokens))) == 0
        assert compute(manager, make_request("b", range(num_tokens))) == expected


def test_hit_of_a_freed_request_and_none_after_eviction():
    manager = new_manager(6)
    first = make_request("a", range(12))
    compute(manager, first)
    manager.free(first)
    again = make_request("b", range(12))
    assert compute(manager, again) == 8
    manager.free(again)
    compute(manager, make_request("other", range(100, 120)))
    assert manager.get_computed_blocks(make_request("c", range(12))).num_tokens == 0


def test_salts_do_not_share_and_equal_salts_do():
    manager = new_manager()
    assert compute(manager, make_request("a", range(9), cache_salt="x")) == 0
    assert compute(manager, make_request("b", range(9), cache_salt="y")) == 0
    assert compute(manager, make_request("c", range(9))) == 0
    assert compute(manager, make_request("d", range(9), cache_salt="x")) == 8


def test_generated_tokens_are_cached_too():
    manager = new_manager()
    request = make_request("a", range(6))
    compute(manager, request)
    request.all_token_ids += [50, 51, 52]
    manager.allocate_slots(request, 3)
    request.num_computed_tokens = 9
    manager.cache_blocks(request)
    assert manager.get_computed_blocks(make_request("b", [*range(6), 50, 51, 52])).num_tokens == 8


def test_draft_tokens_are_never_cached():
    manager = new_manager()
    request = make_request("a", range(6))
    compute(manager, request)
    manager.allocate_slots(request, 4)
    request.num_computed_tokens = 10  # four drafts, none known
    manager.cache_blocks(request)
    assert manager.get_computed_blocks(make_request("b", [*range(6), 0, 0, 0])).num_tokens == 4


def test_allocation_that_does_not_fit_changes_nothing():
    manager = new_manager(4)
    request = make_request("a", range(8))
    compute(manager, request)
    assert manager.num_free_blocks == 1
    assert manager.allocate_slots(request, 5) is None
    assert manager.num_free_blocks == 1
    assert manager.allocate_slots(request, 4) == ([3],)
    other = make_request("b", range(50, 53))
    assert manager.start(other, manager.get_computed_blocks(other), 3) is None
    assert manager.num_free_blocks == 0


def test_hit_blocks_in_the_free_queue_count_as_needed():
    """They are free, but taking them leaves fewer free blocks for the rest."""
    manager = new_manager(4)
    first = make_request("a", range(12))
    compute(manager, first)
    manager.free(first)
    longer = make_request("b", [*range(8), *range(50, 58)])
    hit = manager.get_computed_blocks(longer)
    assert hit.num_tokens == 8
    assert not manager.fits_whole(longer, hit, 0)
    assert manager.start(longer, hit, 8) is None
    assert manager.num_free_blocks == 3


def test_shared_blocks_take_no_room_with_full_and_sliding_layers():
    manager = new_manager(30, full(4), sliding(5, 4))
    compute(manager, make_request("a", range(33)))
    child = make_request("b", range(33))
    hit = manager.get_computed_blocks(child)
    assert hit.num_tokens == 32
    assert manager.num_free_blocks == 29 - 18
    assert manager.fits_whole(child, hit, 1)  # 1 of the full layer and at most 9 of the sliding one
    assert not manager.fits_whole(child, hit, 2)


def test_decode_allocates_once_per_block():
    manager = new_manager()
    request = make_request("a", range(4))
    compute(manager, request)
    new_blocks = []
    for _ in range(8):
        request.all_token_ids.append(9)
        new_blocks += [ids for group in manager.allocate_slots(request, 1) for ids in group]
        request.num_computed_tokens += 1
    assert new_blocks == [2, 3]


def test_slots_never_pass_the_model_length():
    manager = new_manager()
    request = make_request("a", range(98))
    compute(manager, request)
    manager.allocate_slots(request, 1, num_lookahead_tokens=10)
    assert manager.num_free_blocks == 49 - 25


def test_untrusted_blocks_are_not_found_again():
    manager = new_manager()
    request = make_request("a", range(9))
    compute(manager, request)
    manager.free(request)
    manager.forget(request)
    assert manager.get_computed_blocks(make_request("b", range(9))).num_tokens == 0
    assert manager.usage == 0.0


def test_prompt_logprobs_and_switched_off_caching_read_nothing():
    manager = new_manager()
    compute(manager, make_request("a", range(9)))
    reader = make_request("b", range(9))
    reader.sampling_params.prompt_logprobs = 1
    assert manager.get_computed_blocks(reader).num_tokens == 0
    off = new_manager(caching=False)
    compute(off, make_request("a", range(9)))
    assert off.get_computed_blocks(make_request("b", range(9))).num_tokens == 0


def test_stats_count_tokens_since_the_last_call():
    manager = new_manager()
    no_hit = manager.get_computed_blocks(make_request("a", [1]))
    manager.record_hit(make_request("a", range(33)), replace(no_hit, num_tokens=16))
    manager.record_hit(make_request("b", range(10)), no_hit)
    params = SamplingParams(skip_reading_prefix_cache=True)
    manager.record_hit(make_request("c", range(7), params=params), no_hit)  # looked nothing up: no miss
    stats = manager.take_prefix_cache_stats()
    assert (stats.queries, stats.hits) == (43, 16)
    assert manager.take_prefix_cache_stats().queries == 0


def test_events_tell_of_stored_and_cleared_blocks():
    manager = new_manager(enable_kv_events=True)
    request = make_request("a", range(9))
    compute(manager, request)
    (stored,) = manager.take_events()
    assert stored.token_ids == list(range(8))
    assert stored.block_hashes == request.block_hashes[:2]
    assert stored.parent_block_hash is None
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert len(manager.take_events()) == 1
