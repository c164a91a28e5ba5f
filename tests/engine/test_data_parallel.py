"""Two engine replicas in processes of their own: the results of one, whatever happens to either."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams
from octavo.engine.data_parallel import check_front_end, plan_replicas
from octavo.errors import ConfigError, InvalidRequestError
from tests.engine.processes import SMALL, comparable, is_alive
from tests.invariance.workloads import random_workload

LONG = {"max_tokens": 300, "ignore_eos": True, "temperature": 1.0, "seed": 1}
WORKLOADS = [random_workload(seed) for seed in range(4)]
PROMPTS = [prompt for workload in WORKLOADS for prompt in workload.prompts]
PARAMS = [params for workload in WORKLOADS for params in workload.params]


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def engine(tiny_llama, loop):
    options = {**SMALL, "data_parallel_size": 2, "data_parallel_prefix_affinity": True}
    extension = {"worker_extension_cls": "tests.engine.worker_extension.Extension"}
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(tiny_llama), **options, **extension))
    yield engine
    process_ids = engine.engine_core.process_ids
    engine.shutdown()
    assert len(process_ids) == 2 and not any(map(is_alive, process_ids))


@pytest.fixture
def run(engine, loop):
    """Run a coroutine; afterwards nothing of any request may be left at either replica."""
    yield loop.run_until_complete

    async def check() -> None:
        await engine.wait_for_requests_to_drain(60)
        assert not any(len(supervisor.requests) for supervisor in engine.engine_core._replicas.supervisors)
        assert await engine.reset_prefix_cache(), "blocks are still in use"
        assert [stats[:3] for stats in await engine.engine_core.call_each("scheduler_stats")] == [[0, 0, 0.0]] * 2

    loop.run_until_complete(check())


@pytest.fixture(scope="module")
def expected(tiny_llama) -> list[Any]:
    return [comparable(output) for output in LLM(str(tiny_llama), **SMALL).generate(PROMPTS, PARAMS, use_tqdm=False)]


async def final(engine: AsyncLLM, prompt: Any, params: SamplingParams, **options: Any) -> Any:
    params = copy.copy(params)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    (output,) = [output async for output in engine.generate(prompt, params, "r", **options)]
    return output


def value(engine: AsyncLLM, name: str) -> list[float]:
    """A counter or gauge of each replica."""
    return [metric.value for metric in engine.get_metrics() if metric.name == f"vllm:{name}"]


async def all_results(engine: AsyncLLM) -> list[Any]:
    outputs = [final(engine, prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    return [comparable(output) for output in await asyncio.gather(*outputs)]


@pytest.mark.native_ops
def test_results_equal_those_of_one_engine_and_both_replicas_work(engine, run, expected):
    before = value(engine, "generation_tokens")
    assert run(all_results(engine)) == expected
    assert all(now > then for now, then in zip(value(engine, "generation_tokens"), before, strict=True))


@pytest.mark.native_ops
def test_a_replica_killed_under_load_costs_no_request_anything(engine, run, expected):
    async def scenario() -> list[Any]:
        async def kill() -> None:
            for rank in (0, 1, 0):
                while not all(engine.engine_core.are_serving):
                    await asyncio.sleep(0.01)
                os.kill(engine.engine_core.process_ids[rank], signal.SIGKILL)
                while engine.engine_core.are_serving[rank]:
                    await asyncio.sleep(0.001)
                await engine.check_health()  # the other serves

        killing = asyncio.create_task(kill())
        results = []
        while not killing.done():
            results.append(await all_results(engine))
        await killing
        return results

    for results in run(scenario()):
        assert results == expected


def test_a_request_goes_where_it_wishes_and_only_there(engine, run):
    before = value(engine, "generation_tokens")
    for _ in range(3):
        run(final(engine, [9] * 5, SamplingParams(max_tokens=4, ignore_eos=True), data_parallel_rank=1))
    after = value(engine, "generation_tokens")
    assert (after[0] - before[0], after[1] - before[1]) == (0, 12)


@pytest.mark.parametrize("rank", [2, -1, 10**9, 1.0, "1", True])
def test_a_wish_for_a_replica_that_there_is_not_is_refused(engine, run, rank):
    with pytest.raises(InvalidRequestError, match="from 0 to 1, for this server has 2 engine replicas") as caught:
        run(final(engine, "a", SamplingParams(), data_parallel_rank=rank))
    assert caught.value.parameter == "data_parallel_rank"


def test_a_prompt_finds_its_beginning_where_it_was_computed(engine, run):
    prefixes = [[topic] * 128 for topic in range(10, 18)]
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    for prefix in prefixes:
        assert run(final(engine, prefix, params)).num_cached_tokens == 0
    again = [run(final(engine, [*prefix, 5], params)).num_cached_tokens for prefix in prefixes]
    assert again == [128] * 8


def test_an_abort_ends_the_request_at_its_replica(engine, run):
    async def scenario() -> None:
        stream = engine.generate("hello", SamplingParams(**LONG), "left", data_parallel_rank=1)
        await stream.__anext__()
        await engine.abort("left")
        assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"

    run(scenario())


def test_services_reach_both_replicas(engine, run):
    async def scenario() -> None:
        assert await engine.collective_rpc("process_id") == engine.engine_core.process_ids
        await engine.sleep(level=1)
        assert await engine.engine_core.call_each("is_sleeping") == [True, True]
        assert await engine.is_sleeping()
        await engine.wake_up()
        assert await engine.engine_core.call_each("is_sleeping") == [False, False]
        for rank in (0, 1):
            await final(engine, "a", SamplingParams(max_tokens=2), data_parallel_rank=rank)

    run(scenario())


def test_each_replica_has_its_own_metrics_and_sums_are_of_both(engine, run):
    run(all_results(engine))
    metrics = engine.get_metrics()
    for name in {metric.name for metric in metrics}:
        engines = [metric.labels["engine"] for metric in metrics if metric.name == name]
        assert engines.count("0") == engines.count("1") > 0
    assert sum(value(engine, "generation_tokens")) == engine.metrics.totals()["generation_tokens"] > 0


def test_each_replica_has_cores_of_its_own(engine):
    cores = [os.sched_getaffinity(process_id) for process_id in engine.engine_core.process_ids]
    if len(os.sched_getaffinity(0)) > 1 and "OCTAVO_NUM_THREADS" not in os.environ:
        assert not cores[0] & cores[1]


def test_all_replicas_have_the_same_limits(engine, run):
    assert len({bytes(one[0], "ascii") for one in run(engine.engine_core.call_each("snapshot", 1))}) == 1


@pytest.mark.native_ops
def test_offline_too(tiny_llama, expected):
    llm = LLM(str(tiny_llama), **SMALL, data_parallel_size=2)
    try:
        got = [comparable(output) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
        assert got == expected
        tokens = [metric for metric in llm.get_metrics() if metric.name == "vllm:generation_tokens"]
        assert [metric.labels["engine"] for metric in tokens] == ["0", "1"] and all(m.value for m in tokens)
        assert llm.reset_prefix_cache() is True
        assert len(llm.collective_rpc("get_kv_cache_specs")) == 2
    finally:
        llm.llm_engine.shutdown()


def test_a_replica_that_cannot_start_is_told_and_nothing_is_left(tiny_llama, meeting_folder, own_children):
    with pytest.raises(ConfigError, match="there is no second one"):
        AsyncLLM.from_engine_args(
            EngineArgs(
                model=str(tiny_llama),
                **SMALL,
                data_parallel_size=2,
                worker_cls="tests.engine.worker_extension.OnlyOne",
            )
        )
    assert not own_children()


# -- which replicas a front end runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(1)),
        ({"data_parallel_size": 3}, range(3)),
        ({"data_parallel_size": 3, "data_parallel_size_local": 3}, range(3)),
        ({"data_parallel_size": 3, "data_parallel_rank": 2}, range(2, 3)),
        ({"data_parallel_size": 3, "data_parallel_rank": 0, "data_parallel_external_lb": True}, range(1)),
        ({"data_parallel_size": 4, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}, range(2)),
        (
            {
                "data_parallel_size": 4,
                "data_parallel_hybrid_lb": True,
                "data_parallel_size_local": 2,
                "data_parallel_start_rank": 2,
            },
            range(2, 4),
        ),
    ],
)
def test_the_three_ways_to_balance(options, expected):
    plan = plan_replicas(EngineArgs(**options))
    assert plan.served == plan.local == expected and not plan.remote
    check_front_end(EngineArgs(**options), plan)


@pytest.mark.parametrize(
    ("options", "local", "remote"),
    [
        ({"data_parallel_size_local": 2}, range(2), [2, 3]),
        ({"data_parallel_size_local": 0}, range(0), [0, 1, 2, 3]),
        ({"data_parallel_start_rank": 2}, range(2, 4), [0, 1]),
        ({"data_parallel_start_rank": 1, "data_parallel_size_local": 1}, range(1, 2), [0, 2, 3]),
    ],
)
def test_a_front_end_has_all_replicas_wherever_they_run(options, local, remote):
    plan = plan_replicas(EngineArgs(data_parallel_size=4, **options))
    assert (plan.served, plan.local, plan.remote) == (range(4), local, remote)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"data_parallel_size": 2, "data_parallel_rank": 2}, ConfigError, "ranks 2 to 2"),
        ({"data_parallel_rank": -1}, ConfigError, "ranks -1 to -1"),
        ({"data_parallel_size": 0}, ConfigError, "at least one"),
        ({"data_parallel_size": 2, "data_parallel_external_lb": True}, ConfigError, "takes data_parallel_rank"),
        ({"data_parallel_size": 2, "data_parallel_rank": 0, "data_parallel_size_local": 2}, ConfigError, "one replica"),
        (
            {"data_parallel_size": 2, "data_parallel_hybrid_lb": True, "data_parallel_start_rank": 1},
            ConfigError,
            "ranks 1 to 2",
        ),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, ConfigError, "load balancer"),
        ({"data_parallel_size": 4, "data_parallel_size_local": 0}, ConfigError, "data_parallel_address"),
        ({"data_parallel_size": 4, "data_parallel_start_rank": 2}, ConfigError, "--headless"),
    ],
)
def test_impossible_ranks_are_refused_with_the_numbers(options, error, problem):
    with pytest.raises(error, match=problem):
        check_front_end(EngineArgs(**options), plan_replicas(EngineArgs(**options)))
