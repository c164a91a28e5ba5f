"""Print what one step costs in the scheduler: `schedule` plus `update_from_output`, without any model.

    python benchmarks/scheduler_cost.py

Budgets: 0.5 ms at 32 running requests, 2 ms at 256 (decode steps, median).
"""

from __future__ import annotations

import platform
import statistics
import time

from octavo.config.configs import CacheConfig, SchedulerConfig
from octavo.kv_cache.planning import plan_kv_cache
from octavo.scheduler.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv_spec import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from octavo.types.request import EngineCoreRequest
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import ModelRunnerOutput, SchedulerOutput

PROMPT_TOKENS = 200
NEW_TOKENS = 200
MEMORY_BYTES = 4 * 10**9
MODELS: dict[str, dict[str, KVCacheSpec]] = {
    "30 full layers": {f"layer{i}": FullAttentionSpec(16, 3, 64) for i in range(30)},
    "3 full, 15 sliding": {
        f"layer{i}": FullAttentionSpec(16, 1, 256) if i % 6 == 5 else SlidingWindowSpec(16, 1, 256, sliding_window=512)
        for i in range(18)
    },
}


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}; milliseconds per step")
    print(f"{'model':>20} {'running':>8} {'drafts':>7} {'median':>8} {'p99':>8} {'prefill':>8}")
    for name, specs in MODELS.items():
        for num_requests in (32, 256):
            for num_drafts in (0, 3):
                prefill, decode = step_costs_ms(specs, num_requests, num_drafts)
                p99 = sorted(decode)[int(len(decode) * 0.99)]
                median = statistics.median(decode)
                print(f"{name:>20} {num_requests:8} {num_drafts:7} {median:8.3f} {p99:8.3f} {max(prefill):8.3f}")


def step_costs_ms(specs: dict[str, KVCacheSpec], num_requests: int, num_drafts: int) -> tuple[list[float], list[float]]:
    """Return the costs of the steps with prompts in them, and of the pure decode steps."""
    cache_config = CacheConfig(block_size=16, memory_bytes=None)
    plan = plan_kv_cache(specs, MEMORY_BYTES, cache_config, 8192, 8192)
    scheduler = Scheduler(SchedulerConfig(8192, num_requests, 8192), cache_config, plan)
    for i in range(num_requests):
        scheduler.add_request(make_request(i))
    prefill: list[float] = []
    decode: list[float] = []
    while scheduler.has_unfinished_requests():
        start = time.perf_counter()
        output = scheduler.schedule()
        scheduled = time.perf_counter()
        results = answer(scheduler, output, num_drafts)
        answered = time.perf_counter()
        scheduler.update_from_output(output, results)
        cost = 1e3 * (time.perf_counter() - answered + scheduled - start)
        is_full_decode = not output.scheduled_new_requests and len(output.num_scheduled_tokens) == num_requests
        (decode if is_full_decode else prefill).append(cost)
    return prefill, decode


def make_request(index: int) -> Request:
    prompt = [(index * 7 + j) % 1000 for j in range(PROMPT_TOKENS)]
    return Request.from_core_request(
        EngineCoreRequest(
            request_id=f"request-{index}",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=NEW_TOKENS),
            arrival_time=0.0,
            seed=index,
            eos_token_id=1000,
            stop_token_ids=[1001, 1002],
        )
    )


def answer(scheduler: Scheduler, output: SchedulerOutput, num_drafts: int) -> ModelRunnerOutput:
    """Sample one token each; accept one draft of those that were scheduled."""
    result = ModelRunnerOutput()
    for request_id in output.num_scheduled_tokens:
        request = scheduler.requests[request_id]
        if request.num_computed_tokens >= request.num_tokens:
            result.sampled_token_ids[request_id] = [7, 8] if request_id in output.scheduled_spec_tokens else [7]
            if num_drafts:
                result.draft_token_ids[request_id] = [7] * num_drafts
    return result


if __name__ == "__main__":
    main()
