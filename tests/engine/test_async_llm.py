"""AsyncLLM on a real core process: streams, slow and vanishing consumers, pausing, sleeping, ids, leaks, idleness."""

from __future__ import annotations

import asyncio
import copy
import os
import time
from pathlib import Path

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams
from octavo.errors import EngineDeadError, InvalidRequestError, RequestFailedError, UnsupportedError
from tests.engine.processes import SMALL, comparable, is_alive, num_file_descriptors
from tests.invariance.workloads import random_workload

DELTA, CUMULATIVE, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 1.0, "seed": 1}
SLOW = {**LONG, "extra_args": {"nap_s": 0.002}}  # lasts most of a second, however fast the machine is
PROCESSORS = {"logits_processors": ["tests.engine.odd_processor:OddProcessor"]}


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def engine(tiny_llama, loop):
    options = {**SMALL, **PROCESSORS, "worker_extension_cls": "tests.engine.worker_extension.Extension"}
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(tiny_llama), **options))
    yield engine
    process_id = engine.engine_core.process_id
    engine.shutdown()
    engine.shutdown()
    assert not is_alive(process_id)


@pytest.fixture
def run(engine, loop):
    """Run a coroutine; afterwards nothing of any request may be left, here or in the core."""
    yield loop.run_until_complete

    async def check() -> None:
        await engine.wait_for_requests_to_drain(60)
        assert not engine.streams._output_processor._states
        assert not engine.streams._output_processor._internal_ids
        assert len(engine.engine_core._replicas.supervisors[0].requests) == 0
        assert await engine.reset_prefix_cache(), "blocks are still in use"
        stats = await engine.engine_core.call("scheduler_stats")
        assert stats[:3] == [0, 0, 0.0]
        await asyncio.sleep(0)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not others

    loop.run_until_complete(check())


def params_of(kind: RequestOutputKind = DELTA, **options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, "temperature": 0.0, "output_kind": kind, **options})


async def read(engine, prompt="hello", params: SamplingParams | None = None, request_id="r", **options) -> list:
    return [output async for output in engine.generate(prompt, params or params_of(), request_id, **options)]


async def final(engine, prompt, params: SamplingParams, request_id="r"):
    params = copy.copy(params)
    params.output_kind = FINAL_ONLY
    (output,) = await read(engine, prompt, params, request_id)
    return output


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
@pytest.mark.parametrize("n", [1, 3])
def test_deltas_join_to_what_the_other_kinds_say(engine, run, n):
    options = {"n": n, "temperature": 1.0, "seed": 5, "logprobs": 2, "prompt_logprobs": 1, "ignore_eos": True}
    expected = run(final(engine, "some prompt", params_of(**options)))
    assert [c.index for c in expected.outputs] == list(range(n))
    deltas = run(read(engine, "some prompt", params_of(DELTA, **options)))
    whole = run(read(engine, "some prompt", params_of(CUMULATIVE, **options)))
    for completion in expected.outputs:
        parts = [c for output in deltas for c in output.outputs if c.index == completion.index]
        assert "".join(part.text for part in parts) == completion.text
        assert [token for part in parts for token in part.token_ids] == completion.token_ids
        assert [position for part in parts for position in part.logprobs] == completion.logprobs
        last = [c for output in whole for c in output.outputs if c.index == completion.index][-1]
        assert last == completion
    assert [output.prompt_logprobs for output in deltas if output.prompt_logprobs] == [expected.prompt_logprobs]
    assert [output.finished for output in deltas].count(True) == 1 and deltas[-1].finished


@pytest.mark.native_ops
def test_a_hundred_streams_at_once_equal_their_solo_runs(engine, run, tiny_llama):
    workloads = [random_workload(seed) for seed in range(20)]
    jobs = [job for workload in workloads for job in zip(workload.prompts, workload.params, strict=True)][:100]
    assert len(jobs) == 100
    expected = LLM(str(tiny_llama), **SMALL).generate(*map(list, zip(*jobs, strict=True)), use_tqdm=False)

    async def all_of_them() -> list:
        return await asyncio.gather(*(final(engine, prompt, params) for prompt, params in jobs))

    got = run(all_of_them())
    assert [comparable(output) for output in got] == [comparable(output) for output in expected]


def test_requests_with_the_same_id_at_the_same_time_are_not_mixed_up(engine, run):
    prompts = ["alpha", "beta", "gamma", "delta"]

    async def together() -> list:
        return await asyncio.gather(*(final(engine, prompt, params_of(), "same") for prompt in prompts))

    alone = [run(final(engine, prompt, params_of(), "same")) for prompt in prompts]
    got = run(together())
    assert [comparable(output) for output in got] == [comparable(output) for output in alone]
    assert {output.request_id for output in got} == {"same"}


def test_abandoning_one_of_two_streams_with_the_same_id_leaves_the_other_alone(engine, run):
    async def scenario() -> list:
        abandoned = engine.generate("a", params_of(**LONG), "same")
        other = asyncio.create_task(read(engine, "b", params_of(), "same"))
        await anext(abandoned)
        await abandoned.aclose()
        return await other

    assert run(scenario())[-1].outputs[0].finish_reason in ("stop", "length")


def test_a_long_text_is_tokenised_elsewhere_and_gives_the_same(engine, run):
    text = "word and " * 400
    options = {"truncate_prompt_tokens": 20}
    (long,) = run(read(engine, text, params_of(FINAL_ONLY), tokenization_kwargs=options))
    token_ids = engine.get_tokenizer().encode(text)[-20:]
    assert comparable(long) == comparable(run(final(engine, {"prompt_token_ids": token_ids}, params_of())))


def test_bad_requests_raise_before_anything_runs(engine, run):
    for prompt, params, error in [
        ([], params_of(), InvalidRequestError),
        ("x" * 100_001, params_of(), InvalidRequestError),
        ("a", "no params", InvalidRequestError),
        ("a", params_of(logit_bias={10**6: 1.0}), InvalidRequestError),
        ("a", params_of(extra_args={"x": object()}), InvalidRequestError),
    ]:
        with pytest.raises(error):
            run(read(engine, prompt, params))
    with pytest.raises(InvalidRequestError, match="lora_request"):
        run(read(engine, lora_request=object()))
    with pytest.raises(InvalidRequestError, match="data_parallel_rank"):
        run(read(engine, data_parallel_rank=1))


# -- consumers ---------------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
def test_a_slow_consumer_gets_few_merged_outputs_and_holds_up_nobody(engine, run, kind):
    params = params_of(kind, **{**SLOW, "max_tokens": 100, "logprobs": 1})
    expected = run(final(engine, "slow", params)).outputs[0]

    async def scenario() -> list:
        slow = engine.generate("slow", params, "slow")
        outputs = [await anext(slow)]
        await read(engine, "fast", params_of(**{**LONG, "max_tokens": 300}), "fast")  # meanwhile
        return outputs + [output async for output in slow]

    outputs = run(scenario())
    assert len(outputs) <= 2
    assert outputs[-1].outputs[0].finish_reason == "length"
    if kind is CUMULATIVE:
        assert outputs[-1].outputs[0] == expected
    else:
        completions = [output.outputs[0] for output in outputs]
        assert "".join(c.text for c in completions) == expected.text
        assert [p for c in completions for p in c.logprobs] == expected.logprobs


@pytest.mark.parametrize("n", [1, 2])
def test_a_cancelled_consumer_aborts_its_request_in_the_core(engine, run, n):
    async def scenario() -> None:
        task = asyncio.create_task(read(engine, "a", params_of(n=n, **SLOW)))
        await until_live(engine, 1)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.get_num_unfinished_requests() == 0

    run(scenario())


def test_abort_ends_the_streams_with_what_they_have(engine, run):
    async def scenario() -> list:
        tasks = [asyncio.create_task(read(engine, "a", params_of(**SLOW), name)) for name in ("one", "two", "three")]
        await until_live(engine, 3)
        await engine.abort("one")
        await engine.abort(["two", "unknown"])
        assert engine.get_num_unfinished_requests() == 1
        await engine.abort("three")
        return await asyncio.gather(*tasks)

    for outputs in run(scenario()):
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"


def test_a_storm_of_aborts_leaves_nothing(engine, run):
    async def one(number: int) -> None:
        stream = engine.generate([1 + number % 300] * (1 + number % 40), params_of(n=1 + number % 2, **LONG), "s")
        for _ in range(number % 4):
            await anext(stream, None)
        if number % 3:
            await engine.abort("nobody")
        await stream.aclose()

    async def storm() -> None:
        for start in range(0, 600, 50):
            await asyncio.gather(*(one(number) for number in range(start, start + 50)))

    run(storm())
    before = num_file_descriptors()
    run(storm())
    assert num_file_descriptors() <= before


# -- pausing and sleeping ----------------------------------------------------------------------------------------------


async def start_two(engine) -> list[asyncio.Task]:
    tasks = [asyncio.create_task(read(engine, name, params_of(**SLOW), name)) for name in "ab"]
    await until_live(engine, 2)
    await asyncio.sleep(0.02)
    return tasks


async def until_live(engine, count: int) -> None:
    async def wait() -> None:
        while engine.get_num_unfinished_requests() < count:
            await asyncio.sleep(0)

    await asyncio.wait_for(wait(), 60)


async def is_waiting(task: asyncio.Task) -> bool:
    done, _ = await asyncio.wait([task], timeout=0.1)
    return not done


@pytest.mark.parametrize("mode, reason", [("abort", "abort"), ("wait", "length"), ("keep", "length")])
def test_pausing_does_what_the_mode_says_and_new_requests_wait(engine, run, mode, reason):
    expected = run(read(engine, "a", params_of(FINAL_ONLY, **LONG)))[-1].outputs[0].token_ids

    async def scenario() -> None:
        tasks = await start_two(engine)
        await engine.pause_generation(mode=mode)
        assert await engine.is_paused()
        new = asyncio.create_task(read(engine, "c"))
        assert await is_waiting(new)
        assert [task.done() for task in tasks] == [mode != "keep"] * 2
        await engine.resume_generation()
        assert not await engine.is_paused()
        first, _, third = await asyncio.gather(*tasks, new)
        assert third[-1].finished
        assert first[-1].outputs[0].finish_reason == reason
        if reason == "length":
            assert [token for output in first for token in output.outputs[0].token_ids] == expected

    run(scenario())


def test_waiting_for_requests_that_stand_still_lets_them_finish(engine, run):
    async def scenario() -> None:
        tasks = await start_two(engine)
        await engine.pause_generation(mode="keep")
        await engine.pause_generation(mode="wait")
        assert all(task.done() for task in tasks) or engine.get_num_unfinished_requests() == 0
        await asyncio.gather(*tasks)
        assert await engine.is_paused()
        await engine.resume_generation()
        assert (await read(engine, "c"))[-1].finished

    run(scenario())


def test_events_that_nobody_could_take_are_refused(tiny_llama):
    args = EngineArgs(model=str(tiny_llama), kv_events_config={"enable_kv_cache_events": True}, **SMALL)
    with pytest.raises(UnsupportedError, match="kv_events_config"):
        AsyncLLM.from_engine_args(args)


def test_an_unknown_mode_is_refused(engine, run):
    with pytest.raises(InvalidRequestError, match="abort, wait or keep"):
        run(engine.pause_generation(mode="stop"))
    with pytest.raises(InvalidRequestError, match="level"):
        run(engine.sleep(3))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleeping_gives_memory_back_and_requests_go_on_afterwards(engine, run, level):
    expected = run(read(engine, "a", params_of(FINAL_ONLY, **LONG)))[-1].outputs[0].token_ids

    async def scenario() -> None:
        tasks = await start_two(engine)
        await engine.sleep(level, mode="keep")
        assert await engine.is_sleeping()
        assert await engine.collective_rpc("holds_memory") == [[level == 0, level < 2]]
        new = asyncio.create_task(read(engine, "c"))
        assert await is_waiting(new)
        assert not any(task.done() for task in tasks)
        await engine.wake_up()
        assert not await engine.is_sleeping()
        first, _, third = await asyncio.gather(*tasks, new)
        assert [token for output in first for token in output.outputs[0].token_ids] == expected
        assert third[-1].finished
        await engine.wake_up()  # twice does no harm

    run(scenario())


# -- services ----------------------------------------------------------------------------------------------------------


def test_worker_methods_are_called_by_name(engine, run):
    assert run(engine.collective_rpc("repeat", args=("x",), kwargs={"times": 2})) == [["x", "x"]]
    with pytest.raises(UnsupportedError):
        run(engine.collective_rpc(print))
    with pytest.raises(UnsupportedError, match="no_such"):
        run(engine.collective_rpc("no_such"))
    with pytest.raises(RequestFailedError, match="TypeError"):
        run(engine.collective_rpc("repeat"))
    with pytest.raises(TimeoutError, match=r"0\.05 seconds"):
        run(engine.collective_rpc("nap", timeout=0.05, args=(0.5,)))


def test_metrics_count_requests_and_aborts_and_settle_at_zero(engine, run):
    def read_metrics() -> dict:
        return {(m.name.partition(":")[2], m.labels.get("finished_reason")): m for m in engine.get_metrics()}

    async def scenario() -> None:
        tasks = await start_two(engine)
        await engine.abort("a")
        await engine.abort("b")
        await asyncio.gather(*tasks)
        await read(engine, "c", params_of(ignore_eos=True))
        await engine.check_health()

    before = read_metrics()
    run(scenario())
    after = read_metrics()
    for reason, count in (("abort", 2), ("length", 1)):
        assert after["request_success", reason].value - before["request_success", reason].value == count
    assert after["num_requests_running", None].value == 0
    assert after["kv_cache_usage_perc", None].value == 0


def test_aborting_the_last_requests_brings_the_gauges_down_without_a_further_step(engine, run):
    async def scenario() -> None:
        tasks = await start_two(engine)
        await engine.abort(["a", "b"])
        await asyncio.gather(*tasks)

        def num_running() -> float:
            return {m.name.partition(":")[2]: m for m in engine.get_metrics()}["num_requests_running"].value

        async def settle() -> None:
            while num_running():
                await asyncio.sleep(0.005)

        await asyncio.wait_for(settle(), 60)

    run(scenario())


def test_the_log_line_says_how_fast_it_went(engine, run, monkeypatch):
    lines = []
    monkeypatch.setattr("octavo.engine.async_llm.logger.info", lambda template, *args: lines.append(template % args))
    run(engine.do_log_stats())
    run(read(engine))
    run(engine.do_log_stats())
    run(engine.do_log_stats())
    assert "generation 0.0 tokens/s" not in lines[1]
    assert "generation 0.0 tokens/s" in lines[2]


def test_an_idle_engine_uses_no_processor_time(engine, run):
    process_id = engine.engine_core.process_id

    def ticks() -> int:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    run(read(engine))
    time.sleep(0.2)
    before, own_before = ticks(), time.process_time()
    run(asyncio.sleep(1.0))
    assert ticks() - before <= 2 * os.sysconf("SC_CLK_TCK") // 100  # 2 %
    assert time.process_time() - own_before < 0.05


def test_the_engine_serves_one_event_loop_after_another_but_not_two_at_once(engine, run):
    async def elsewhere() -> None:
        await read(engine)

    run(read(engine))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(elsewhere())


def test_programs_may_run_several_event_loops_and_uvloop(tiny_llama):
    uvloop = pytest.importorskip("uvloop")
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(tiny_llama), **SMALL))

    async def scenario() -> list:
        results = await asyncio.gather(*(final(engine, prompt, params_of(), prompt) for prompt in "abc"))
        await engine.pause_generation(mode="wait")
        waiting = asyncio.create_task(read(engine))
        assert await is_waiting(waiting)
        await engine.resume_generation()
        await waiting
        await engine.wait_for_requests_to_drain(10)
        return [comparable(result) for result in results]

    first = asyncio.run(scenario())
    assert asyncio.run(scenario()) == first
    other = uvloop.new_event_loop()
    assert other.run_until_complete(scenario()) == first
    other.close()
    engine.shutdown()


# -- the end -----------------------------------------------------------------------------------------------------------


def test_shutdown_ends_streams_with_an_error_and_refuses_new_ones(tiny_llama):
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(tiny_llama), **SMALL, **PROCESSORS))

    async def scenario() -> None:
        tasks = await start_two(engine)
        with pytest.raises(TimeoutError, match="2 sequences"):
            await engine.wait_for_requests_to_drain(0.01)
        engine.shutdown()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
        with pytest.raises(EngineDeadError, match="shut down"):
            await read(engine)
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        assert engine.errored and engine.is_stopped and not engine.is_running
        assert engine.get_num_unfinished_requests() == 0

    asyncio.run(scenario())
