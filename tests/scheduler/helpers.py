"""Short constructors, and the invariants that hold between any two steps."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from octavo.config.configs import CacheConfig, SchedulerConfig
from octavo.kv_cache.manager import KVCacheManager
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, SlidingWindowSpec
from octavo.types.messages import EngineCoreOutput
from octavo.types.request import EngineCoreRequest
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import ModelRunnerOutput, SchedulerOutput


def full(block_size: int = 4) -> KVCacheSpec:
    return FullAttentionSpec(block_size, 1, 8)


def sliding(window: int, block_size: int = 4) -> KVCacheSpec:
    return SlidingWindowSpec(block_size, 1, 8, sliding_window=window)


def kv_config(num_blocks: int, *specs: KVCacheSpec) -> KVCacheConfig:
    groups = tuple(KVCacheGroupSpec((f"layer{i}",), spec) for i, spec in enumerate(specs or (full(),)))
    return KVCacheConfig(num_blocks, (), groups)


def make_request(
    request_id: str,
    prompt: int | Sequence[int],
    max_tokens: int | None = 4,
    *,
    params: SamplingParams | None = None,
    **fields: object,
) -> Request:
    """Build a request. An int prompt means so many tokens that no other request id shares."""
    if isinstance(prompt, int):
        prompt = [zlib.crc32(f"{request_id} {i}".encode()) % 1000 + 100 for i in range(prompt)]
    params = params or SamplingParams(max_tokens=max_tokens)
    fields.setdefault("arrival_time", 0.0)
    fields.setdefault("seed", 0)
    return Request.from_core_request(
        EngineCoreRequest(request_id=request_id, prompt_token_ids=list(prompt), sampling_params=params, **fields)
    )


def make_scheduler(
    num_blocks: int = 100,
    *specs: KVCacheSpec,
    budget: int = 64,
    max_num_seqs: int = 8,
    max_model_len: int = 200,
    prefix_caching: bool = True,
    watermark: float = 0.0,
    events: bool = False,
    hooks: dict[str, object] | None = None,
    **fields: object,
) -> Scheduler:
    return Scheduler(
        SchedulerConfig(budget, max_num_seqs, max_model_len, **fields),
        CacheConfig(4, 0, enable_prefix_caching=prefix_caching, watermark=watermark, enable_kv_events=events),
        kv_config(num_blocks, *specs),
        clock=lambda: 0.0,
        **(hooks or {}),
    )


def answer(scheduler: Scheduler, output: SchedulerOutput, token_id: int = 7) -> ModelRunnerOutput:
    """Sample token_id for every request whose known tokens this step completes."""
    result = ModelRunnerOutput()
    for request_id in output.num_scheduled_tokens:
        request = scheduler.requests.get(request_id)
        if request is not None and request.num_computed_tokens >= request.num_tokens:
            result.sampled_token_ids[request_id] = [token_id]
    return result


def step(scheduler: Scheduler, token_id: int = 7) -> tuple[SchedulerOutput, dict[str, EngineCoreOutput]]:
    """Run one step; return what was scheduled and the messages by request id."""
    output = scheduler.schedule()
    results = scheduler.update_from_output(output, answer(scheduler, output, token_id))
    check_invariants(scheduler)
    return output, {message.request_id: message for message in results.outputs}


def run_to_end(scheduler: Scheduler, max_steps: int = 1000) -> list[SchedulerOutput]:
    """Run until nothing is left; return every step."""
    steps = []
    while scheduler.has_unfinished_requests():
        steps.append(step(scheduler)[0])
        assert len(steps) < max_steps, "requests starve"
    return steps


def check_invariants(scheduler: Scheduler) -> None:
    """Check the books: references, free queue, hash map, tables against computed tokens."""
    kv_cache = scheduler.kv_cache
    holders: Counter[int] = Counter()
    running = {request.request_id for request in scheduler.running}
    assert len(running) == len(scheduler.running)
    waiting = {request.request_id for request in scheduler.waiting}
    assert running | waiting == set(scheduler.requests) and not running & waiting
    for request in scheduler.waiting:
        assert request.num_computed_tokens == 0 and not request.spec_token_ids
    for request in scheduler.requests.values():
        for manager in kv_cache._coordinator.managers:
            blocks = manager.blocks(request.request_id)
            if request.request_id in waiting:
                assert not blocks, f"{request.request_id} waits and holds blocks"
                continue
            assert len(blocks) * manager.block_size >= request.num_computed_tokens
            holders.update(block.block_id for block in blocks if block.block_id)
            if isinstance(manager.spec, SlidingWindowSpec):
                # What the next token reads is there. In-flight steps may still be rejected down to num_tokens - 1.
                position = min(request.num_computed_tokens, request.num_tokens - 1)
                first = max(position - manager.spec.sliding_window + 1, 0) // manager.block_size
                last = -(-request.num_computed_tokens // manager.block_size)
                assert all(block.block_id for block in blocks[first:last]), f"{request.request_id} lacks its window"
            else:
                assert all(block.block_id for block in blocks)
    check_pool(kv_cache, holders)


def check_pool(kv_cache: KVCacheManager, holders: Counter[int]) -> None:
    pool = kv_cache._pool
    free = [block.block_id for block in pool.free_queue]
    assert len(free) == len(set(free)) == pool.num_free
    for block in pool.blocks[1:]:
        assert block.ref_count == holders[block.block_id], f"{block} is held {holders[block.block_id]} times"
        assert (block.ref_count == 0) == (block.next_free is not None)
    assert 0 not in free and pool.null_block.block_hash is None
    hashed = {(block.group_id, block.block_hash) for block in pool.blocks if block.block_hash is not None}
    mapped = {(group_id, key) for group_id, cached in enumerate(pool._cached) for key in cached.first}
    assert hashed == mapped, "hash map and blocks disagree"


def assert_all_free(scheduler: Scheduler) -> None:
    assert not scheduler.requests and not scheduler.running and not len(scheduler.waiting)
    assert scheduler.kv_cache.num_free_blocks == scheduler.kv_cache._pool.num_blocks - 1
    assert scheduler.kv_cache.usage == 0.0
