"""Workers in processes of their own: the same results, and an end to every disaster."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams, StructuredOutputsParams
from octavo.errors import ConfigError, EngineDeadError, RequestFailedError, UnsupportedError
from tests.engine.processes import SMALL, children_of, comparable, is_alive, shared_memory, wait_until
from tests.invariance.workloads import random_workload

EXTENSION = "tests.executor.extensions.Extension"
LONG = {"max_tokens": 200, "ignore_eos": True, "temperature": 1.0, "seed": 1}

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture
def nothing_is_left(meeting_folder, own_children):
    """No process and no file in shared memory outlives a test's engines."""
    before = shared_memory()
    yield
    wait_until(lambda: not own_children())
    new = shared_memory() - before  # some may be of other engines on this machine, which start
    wait_until(lambda: not new & shared_memory())


@pytest.fixture
def start_llm():
    started: list[LLM] = []

    def start(model, **options: Any) -> LLM:
        started.append(LLM(str(model), **{**SMALL, "distributed_executor_backend": "mp", **options}))
        return started[-1]

    yield start
    for llm in started:
        llm.llm_engine.shutdown()


def generate(llm: LLM, jobs: list[tuple[Any, SamplingParams]]) -> list[Any]:
    return [comparable(output) for output in llm.generate(*map(list, zip(*jobs, strict=True)), use_tqdm=False)]


def workers_of(llm: LLM) -> list[int]:
    return llm.collective_rpc("process_id")


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [True, False])
def test_results_are_those_of_a_worker_in_the_same_process(tiny_llama, start_llm, ahead):
    workloads = [random_workload(seed) for seed in range(6)]
    jobs = [job for workload in workloads for job in zip(workload.prompts, workload.params, strict=True)]
    expected = generate(LLM(str(tiny_llama), **SMALL), jobs)
    assert generate(start_llm(tiny_llama, async_scheduling=ahead), jobs) == expected


@pytest.mark.model
@pytest.mark.native_ops
def test_a_grammar_comes_after_the_forward_has_begun(start_llm):
    params = SamplingParams(temperature=0, structured_outputs=StructuredOutputsParams(choice=["violet", "ochre"]))
    jobs = [("My favourite colour is", params), ("Once", SamplingParams(temperature=0, max_tokens=8))]
    options = {"max_model_len": 128, "kv_cache_memory_bytes": 2**26}
    expected = generate(LLM("smollm2-135m-instruct", **options), jobs)
    assert generate(start_llm("smollm2-135m-instruct", **options), jobs) == expected
    assert expected[0][1][1] in ("violet", "ochre")


def test_a_step_that_fails_ends_its_requests_and_no_others(tiny_llama, start_llm):
    llm = start_llm(tiny_llama, worker_cls="tests.executor.extensions.FailingStep")
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    (failed,) = llm.generate([[5, 6]], params, use_tqdm=False)
    assert (failed.outputs[0].finish_reason, failed.outputs[0].stop_reason) == ("error", "ValueError: the third step")
    assert generate(llm, [([5, 6], params)]) == generate(LLM(str(tiny_llama), **SMALL), [([5, 6], params)])


def test_steps_made_ahead_of_one_that_fails_tell_of_no_errors_of_their_own(tiny_llama, start_llm, capfd, caplog):
    llm = start_llm(tiny_llama, worker_cls="tests.executor.extensions.FailingFirstStep", async_scheduling=True)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    outputs = llm.generate([[5, 6], [7, 8, 9]], params, use_tqdm=False)
    assert "error" in [output.outputs[0].finish_reason for output in outputs]
    written = capfd.readouterr().err + caplog.text
    assert "the third step" in written and "KeyError" not in written
    assert written.count("failed at rank 0") == 1


def test_a_request_that_fails_leaves_the_step_made_ahead_to_its_neighbours(tiny_llama, start_llm):
    llm = start_llm(tiny_llama, async_scheduling=True)
    bang = llm.get_tokenizer().encode("!", add_special_tokens=False)
    bad = SamplingParams(allowed_token_ids=bang, bad_words=["!!"], max_tokens=8)  # nothing may follow the first
    good = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    jobs = [([5, 6], good), ([7, 8, 9], bad), ([10], good)]
    before, failed, behind = generate(llm, jobs)
    assert failed[1][5] == "error" and "no token is left" in failed[1][6]
    assert [before, behind] == generate(llm, [jobs[0], jobs[2]])


# -- calls -------------------------------------------------------------------------------------------------------------


def test_methods_of_an_extension_are_called_by_name(tiny_llama, start_llm):
    llm = start_llm(tiny_llama, worker_extension_cls=EXTENSION)
    assert llm.collective_rpc("repeat", args=("x",), kwargs={"times": 3}) == [["x"] * 3]
    assert workers_of(llm) != [os.getpid()]
    with pytest.raises(UnsupportedError, match="no method 'fly'"):
        llm.collective_rpc("fly")
    with pytest.raises(UnsupportedError, match="by a method's name"):
        llm.collective_rpc(lambda worker: 1)
    with pytest.raises(UnsupportedError, match="plain data"):
        llm.collective_rpc("repeat", args=(object(),))
    with pytest.raises(RequestFailedError, match="divide failed at rank 0: ZeroDivisionError"):
        llm.collective_rpc("divide")
    with pytest.raises(TimeoutError, match="rank 0"):
        llm.collective_rpc("nap", timeout=0.05, args=(0.5,))
    assert llm.collective_rpc("repeat", args=("late answers are dropped", 1)) == [["late answers are dropped"]]


def test_a_call_that_fails_at_one_rank_first_is_over(tiny_llama, start_llm):
    llm = start_llm(tiny_llama, worker_extension_cls=EXTENSION, tensor_parallel_size=2)
    with pytest.raises(RequestFailedError, match="fail_at_last_rank failed at rank 1: ValueError: too early"):
        llm.collective_rpc("fail_at_last_rank", timeout=5.0)
    with pytest.raises(TimeoutError, match=r"has not answered after 0\.6 s"):
        llm.collective_rpc("nap_by_rank", timeout=0.6, args=(0.45,))  # all ranks together have this time
    assert llm.collective_rpc("repeat", args=("on", 1)) == [["on"], ["on"]]


def test_an_executor_may_be_a_class_or_its_name(tiny_llama):
    from tests.executor.extensions import CountingExecutor

    for wish in (CountingExecutor, "tests.executor.extensions.CountingExecutor"):
        llm = LLM(str(tiny_llama), distributed_executor_backend=wish, **SMALL)
        llm.generate([[5]], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
        executor = llm.llm_engine.engine_core.engine_core.executor
        assert type(executor) is CountingExecutor and executor.num_steps == 3


@pytest.mark.parametrize(
    "wish, text",
    [
        ("tests.executor.extensions.NoExecutor", "uni, mp, ray, external_launcher, or name a subclass"),
        ("tests.executor.no_such.Thing", "cannot import"),
        ("mpp", "uni, mp, ray, external_launcher, or name a subclass"),
    ],
)
def test_what_is_no_executor_is_refused(tiny_llama, wish, text):
    with pytest.raises(ConfigError, match=text):
        LLM(str(tiny_llama), distributed_executor_backend=wish, **SMALL)


# -- starts that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"kv_cache_memory_bytes": 100, "max_model_len": 64}, ConfigError, "KV cache"),
        ({"worker_cls": "tests.executor.extensions.CannotStart"}, EngineDeadError, "ZeroDivisionError"),
        ({"worker_cls": "tests.executor.extensions.DiesAtStart"}, EngineDeadError, "rank 0 .* ended by signal 9"),
        ({"worker_cls": "tests.executor.extensions.NoExecutor"}, ConfigError, "subclass of octavo.worker"),
    ],
)
def test_what_goes_wrong_at_the_start_is_raised_here(tiny_llama, start_llm, options, error, text):
    with pytest.raises(error, match=text):
        start_llm(tiny_llama, **options)


# -- deaths ------------------------------------------------------------------------------------------------------------


def test_a_dead_worker_ends_an_engine_of_this_process(tiny_llama, start_llm):
    llm = start_llm(tiny_llama, worker_extension_cls=EXTENSION)
    (worker,) = workers_of(llm)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=f"rank 0 .process {worker}. has ended by signal 9"):
        llm.generate([[5]], SamplingParams(max_tokens=3), use_tqdm=False)


@pytest.mark.parametrize("size, text", [(1, r"not done after 1\.6 s: rank 0 is stopped or stuck"), (2, "rank 1")])
def test_a_worker_that_hangs_is_found_and_named(tiny_llama, start_llm, monkeypatch, tmp_path, size, text):
    monkeypatch.setenv("STOPPED_ONCE", str(tmp_path / "stopped"))
    options = {"worker_cls": "tests.executor.extensions.StopsItself", "tensor_parallel_size": size}
    llm = start_llm(tiny_llama, step_timeout_s=2.0, **options)
    with pytest.raises(EngineDeadError, match=text):
        llm.generate([[5]], SamplingParams(**LONG), use_tqdm=False)


def test_a_worker_leaves_with_its_engine(tiny_llama, own_children):
    llm = LLM(str(tiny_llama), distributed_executor_backend="mp", **SMALL)
    assert len(own_children()) == 1
    llm.llm_engine.shutdown()
    llm.llm_engine.shutdown()
    assert not own_children()
    llm = LLM(str(tiny_llama), distributed_executor_backend="mp", **SMALL)
    (worker,) = own_children()
    del llm  # nobody said shutdown
    gc.collect()
    wait_until(lambda: not is_alive(worker))


# -- deaths behind AsyncLLM: everything goes on ------------------------------------------------------------------------


async def final(engine: AsyncLLM, prompt: Any, params: SamplingParams) -> Any:
    params = params.clone()
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return [comparable(output) async for output in engine.generate(prompt, params, "r")][-1]


async def workers_behind(engine: AsyncLLM) -> list[int]:
    """Return the workers' processes, waiting for their start."""
    while True:
        core = engine.engine_core.process_id
        workers = children_of(core) if core is not None else []
        if workers:
            return workers
        await asyncio.sleep(0.005)


def start_async(model: Path, **options: Any) -> AsyncLLM:
    options = {**SMALL, "distributed_executor_backend": "mp", **options}
    return AsyncLLM.from_engine_args(EngineArgs(model=str(model), **options))


@pytest.mark.parametrize("sizes", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_killed_workers_and_cores_under_load_change_no_result(tiny_llama, sizes):
    rng = random.Random(3)
    jobs = [([rng.randrange(3, 90) for _ in range(10)], SamplingParams(**{**LONG, "seed": i})) for i in range(6)]
    expected = generate(LLM(str(tiny_llama), **SMALL), jobs)

    async def scenario() -> tuple[list[Any], set[int]]:
        engine, killed = start_async(tiny_llama, **sizes), set()
        tasks = [asyncio.create_task(final(engine, *job)) for job in jobs]
        for victim in ("worker", "core"):
            await anext(engine.generate([7], SamplingParams(max_tokens=1), "alive"))
            workers, core = await workers_behind(engine), engine.engine_core.process_id
            os.kill(rng.choice(workers) if victim == "worker" else core, signal.SIGKILL)
            killed |= {*workers, core}
            while engine.engine_core.process_id == core:
                await asyncio.sleep(0.005)
        results = await asyncio.gather(*tasks)
        killed.update(await workers_behind(engine))
        engine.shutdown()
        return results, killed

    results, killed = asyncio.run(scenario())
    assert results == expected
    wait_until(lambda: not any(map(is_alive, killed)))


def test_the_death_of_an_idle_worker_is_noticed(tiny_llama):
    async def scenario() -> list[Any]:
        engine = start_async(tiny_llama)
        await final(engine, [9], SamplingParams(max_tokens=1))  # from now on the event loop attends to the engine
        core = engine.engine_core.process_id
        os.kill((await workers_behind(engine))[0], signal.SIGKILL)
        while engine.engine_core.process_id in (core, None):  # nobody asked for anything
            await asyncio.sleep(0.005)
        result = await final(engine, [5], SamplingParams(max_tokens=3, temperature=0))
        engine.shutdown()
        return result

    params = SamplingParams(max_tokens=3, temperature=0)
    assert [asyncio.run(scenario())] == generate(LLM(str(tiny_llama), **SMALL), [([5], params)])


def test_a_stopped_worker_ends_with_a_core_that_is_killed(tiny_llama):
    async def scenario() -> list[int]:
        engine = start_async(tiny_llama)
        await final(engine, [9], SamplingParams(max_tokens=1))
        workers = await workers_behind(engine)
        os.kill(workers[0], signal.SIGSTOP)
        os.kill(engine.engine_core.process_id, signal.SIGKILL)
        await final(engine, [9], SamplingParams(max_tokens=1))
        engine.shutdown()
        return workers

    (worker,) = asyncio.run(scenario())
    wait_until(lambda: not is_alive(worker))


def test_a_worker_that_hangs_is_replaced_and_its_requests_go_on(tiny_llama, monkeypatch, tmp_path):
    monkeypatch.setenv("STOPPED_ONCE", str(tmp_path / "stopped"))
    jobs = [([5, 6, 7], SamplingParams(**LONG))]

    async def scenario() -> Any:
        worker_cls = "tests.executor.extensions.StopsItself"
        engine = start_async(tiny_llama, worker_cls=worker_cls, step_timeout_s=2.0)
        result = await final(engine, *jobs[0])
        engine.shutdown()
        return result

    assert [asyncio.run(scenario())] == generate(LLM(str(tiny_llama), **SMALL), jobs)
    assert (tmp_path / "stopped").exists()
