"""The engine's process is killed at any moment: every request ends exactly as if nothing had happened.

By default a few kills; OCTAVO_FULL_CHAOS=1 kills 50 times under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import random
import signal
from typing import Any

import msgspec
import pytest

from octavo import LLM, AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams
from octavo.engine.parallel_sampling import fan_out
from octavo.engine.supervisor import RecoveryPolicy
from octavo.errors import EngineDeadError
from octavo.types.messages import EngineCoreOutput
from tests.engine.processes import SMALL, comparable, is_alive, num_file_descriptors
from tests.invariance.workloads import random_workload
from tests.speculative.draft_weights import write_mimo

NUM_KILLS = 50 if os.environ.get("OCTAVO_FULL_CHAOS") == "1" else 4
# kills that come faster than tokens look like the doing of the request that is computed
PATIENT = RecoveryPolicy(max_deaths=10_000, max_deaths_of_request=10_000)
KINDS = list(RequestOutputKind)
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 1.0, "seed": 1}

pytestmark = pytest.mark.usefixtures("meeting_folder", "all_engines_end")
started: list[AsyncLLM] = []


@pytest.fixture(scope="module")
def tiny_mimo(tmp_path_factory) -> str:
    return write_mimo(tmp_path_factory.mktemp("mimo"))[0]


@pytest.fixture
def all_engines_end(meeting_folder):
    """A test that fails must not disturb the next one."""
    yield
    while started:
        started.pop().shutdown()


def start(model, policy: RecoveryPolicy = PATIENT, **options: Any) -> AsyncLLM:
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(model), **{**SMALL, **options}), policy)
    started.append(engine)
    return engine


def jobs_of(seeds: range) -> list[tuple[list[int], SamplingParams]]:
    workloads = [random_workload(seed) for seed in seeds]
    return [job for workload in workloads for job in zip(workload.prompts, workload.params, strict=True)]


def undisturbed(model, jobs, **options: Any) -> list[Any]:
    """Results of an engine in this process that nobody kills."""
    llm = LLM(str(model), **{**SMALL, **options})
    return [comparable(output) for output in llm.generate(*map(list, zip(*jobs, strict=True)), use_tqdm=False)]


async def consume(engine: AsyncLLM, prompt: Any, params: SamplingParams, kind: RequestOutputKind) -> Any:
    """Read a stream of any kind; return what `comparable` returns for the whole."""
    params = copy.copy(params)
    params.output_kind = kind
    outputs = [output async for output in engine.generate(prompt, params, "r")]
    last = outputs[-1]
    if kind is RequestOutputKind.FINAL_ONLY:
        assert len(outputs) == 1
        return comparable(last)
    prompt_logprobs = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    if kind is RequestOutputKind.DELTA:
        assert len(prompt_logprobs) <= 1, "prompt logprobs were delivered twice"
    completions = []
    for index in range(params.n):
        parts = [c for output in outputs for c in output.outputs if c.index == index]
        completion = copy.copy(parts[-1])
        if kind is RequestOutputKind.DELTA:
            completion.text = "".join(part.text for part in parts)
            completion.token_ids = [token for part in parts for token in part.token_ids]
            if completion.logprobs is not None:
                completion.logprobs = [position for part in parts for position in part.logprobs]
        completions.append(completion)
    last.prompt_logprobs = prompt_logprobs[-1] if prompt_logprobs else None
    last.outputs = completions
    return comparable(last)


def kill(engine: AsyncLLM) -> None:
    os.kill(engine.engine_core.process_id, signal.SIGKILL)


async def until_running_again(engine: AsyncLLM) -> None:
    while True:
        try:
            return await engine.check_health()
        except EngineDeadError:
            assert not engine.errored
            await asyncio.sleep(0.005)


# -- the core alone: a request may go on from any of its tokens -------------------------------------------------------


def run_core(llm: LLM, requests: list) -> dict[str, list[EngineCoreOutput]]:
    core = llm.llm_engine.engine_core.engine_core
    for request in requests:
        core.add_request(request)
    outputs: dict[str, list[EngineCoreOutput]] = {request.request_id: [] for request in requests}
    while core.has_work():
        for output in core.step().outputs:
            outputs[output.request_id].append(output)
    return outputs


@pytest.mark.native_ops
@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_gemma3"])
def test_a_request_resubmitted_at_any_token_goes_on_to_the_same_end(fixture, request):
    """Penalties, random draws, min_tokens, bad words, logprobs, stops: nothing depends on state that a death loses."""
    llm = LLM(str(request.getfixturevalue(fixture)), **SMALL)
    sequences = []
    for prompt, params in [
        *jobs_of(range(8)),
        ([5, 6, 5, 6], SamplingParams(max_tokens=60, repetition_detection={"max_pattern_size": 4, "min_count": 3})),
        ([9] * 30, SamplingParams(max_tokens=12, min_tokens=9, temperature=0.0, bad_words=["e", " th"], logprobs=3)),
        ([9] * 30, SamplingParams(max_tokens=16, repetition_penalty=1.9, frequency_penalty=1.5, presence_penalty=1.0)),
    ]:
        processed = llm.llm_engine.input_processor.process("r", prompt, params).request
        sequences += fan_out(processed) if params.n > 1 else [processed]
    whole = run_core(llm, sequences)
    resumed = {}
    for sequence in sequences:
        steps = whole[sequence.request_id]
        assert all(len(step.new_token_ids) == 1 for step in steps)
        for position in range(1, len(steps)):
            tokens = [step.new_token_ids[0] for step in steps[:position]]
            name = f"{sequence.request_id}@{position}"
            resumed[name] = msgspec.structs.replace(sequence, request_id=name, output_token_ids=tokens)
    assert len(resumed) > 300
    for name, outputs in run_core(llm, list(resumed.values())).items():
        origin, _, position = name.rpartition("@")
        assert outputs[0].prompt_logprobs is None, "prompt logprobs were computed again"
        expected = [said(step) for step in whole[origin][int(position) :]]
        assert [said(output) for output in outputs] == expected, name


def said(output: EngineCoreOutput) -> tuple:
    return output.new_token_ids, output.logprobs, output.finish_reason, output.stop_reason


# -- kills under load --------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
@pytest.mark.parametrize(
    ("fixture", "options"),
    [
        ("tiny_llama", {}),
        ("tiny_gemma3", {}),
        ("tiny_llama", {"spec_method": "ngram", "spec_tokens": 5, "speculative_config": {"prompt_lookup_min": 1}}),
        ("tiny_llama", {"spec_method": "draft_model", "spec_tokens": 2, "spec_model": "itself"}),
        ("tiny_mimo", {"spec_method": "mtp", "spec_tokens": 2}),
    ],
)
def test_killed_under_load_every_request_ends_as_undisturbed(fixture, options, request, own_children):
    model = request.getfixturevalue(fixture)
    if "spec_method" in options:
        options = {**options, "worker_cls": "tests.engine.worker_extension.Guessing"}
    if "spec_model" in options:
        options["spec_model"] = str(model)
    jobs = jobs_of(range(100, 130))
    expected = undisturbed(model, jobs)
    rng = random.Random(fixture)

    async def chaos() -> tuple[list[Any], int]:
        engine = start(model, **options)
        num_kills = 0
        is_over = asyncio.Event()
        got: list[Any] = [None] * len(jobs)

        async def client(number: int) -> None:
            """Make requests one after another until all kills are done; the results must be the same every time."""
            rounds = random.Random(number)
            while not is_over.is_set() or got[number] is None:
                prompt, params = jobs[number]
                result = await consume(engine, prompt, params, rounds.choice(KINDS))
                assert got[number] in (None, result)
                got[number] = result
                await asyncio.sleep(rounds.random() * 0.2)

        async def killer() -> None:
            nonlocal num_kills
            while num_kills < NUM_KILLS:
                await until_running_again(engine)
                await asyncio.sleep(rng.random() * 0.3)
                kill(engine)
                num_kills += 1
                await asyncio.sleep(0.05)
            is_over.set()

        clients = [asyncio.create_task(client(number)) for number in range(len(jobs))]
        await asyncio.gather(killer(), *clients)
        assert len(own_children()) == 1
        assert await engine.reset_prefix_cache()
        assert (engine.metrics.totals()["spec_decode_num_draft_tokens"] > 0) == ("spec_method" in options)
        engine.shutdown()
        return got, num_kills

    got, num_kills = asyncio.run(chaos())
    assert num_kills == NUM_KILLS
    for number, (result, wanted) in enumerate(zip(got, expected, strict=True)):
        assert result == wanted, jobs[number]


@pytest.mark.native_ops
def test_a_real_model_goes_on_in_the_middle_of_its_sentence():
    options = {"max_model_len": 256, "kv_cache_memory_bytes": 2**27}
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=3, repetition_penalty=1.2, logprobs=1)
    jobs = [("The three primary colours are", params), ("Once upon a time", params)]
    expected = undisturbed("smollm2-135m-instruct", jobs, **options)

    async def scenario() -> list[Any]:
        engine = start("smollm2-135m-instruct", **options)
        tasks = [asyncio.create_task(consume(engine, *job, RequestOutputKind.DELTA)) for job in jobs]
        stream = engine.generate("x", SamplingParams(max_tokens=8, ignore_eos=True), "clock")
        for _ in range(4):
            await anext(stream, None)
        kill(engine)
        await stream.aclose()
        results = await asyncio.gather(*tasks)
        engine.shutdown()
        return results

    assert asyncio.run(scenario()) == expected


def test_nothing_piles_up_over_many_deaths(tiny_llama, own_children):
    async def scenario() -> list[int]:
        engine = start(tiny_llama)
        counts = []
        for _ in range(4):
            task = asyncio.create_task(consume(engine, "a", SamplingParams(**LONG), RequestOutputKind.DELTA))
            await asyncio.sleep(0.05)
            kill(engine)
            await task
            await until_running_again(engine)
            await consume(engine, "b", SamplingParams(max_tokens=2), RequestOutputKind.DELTA)
            await asyncio.sleep(0.1)  # sockets are closed by a thread of their own
            counts.append(num_file_descriptors())
        assert len(own_children()) == 1
        engine.shutdown()
        return counts

    counts = asyncio.run(scenario())
    assert min(counts[2:]) <= max(counts[:2])


# -- while there is no engine ------------------------------------------------------------------------------------------


def test_health_tells_the_truth_and_whatever_is_asked_meanwhile_is_done_afterwards(tiny_llama):
    params = SamplingParams(**{**LONG, "n": 2})
    expected = undisturbed(tiny_llama, [("a", params), ("b", params)])

    async def scenario() -> None:
        engine = start(tiny_llama)
        await engine.check_health()
        before = asyncio.create_task(consume(engine, "a", params, RequestOutputKind.DELTA))
        aborted = asyncio.create_task(consume(engine, "c", SamplingParams(**LONG), RequestOutputKind.DELTA))
        cancelled = asyncio.create_task(consume(engine, "d", SamplingParams(**LONG), RequestOutputKind.DELTA))
        await asyncio.sleep(0.03)
        kill(engine)
        while engine.is_running:
            await asyncio.sleep(0)
        with pytest.raises(EngineDeadError, match="being replaced"):
            await engine.check_health()
        assert not engine.errored
        during = asyncio.create_task(consume(engine, "b", params, RequestOutputKind.DELTA))
        call = asyncio.create_task(engine.reset_prefix_cache(reset_running_requests=True))
        await asyncio.sleep(0)
        assert engine.get_num_unfinished_requests() == 6
        cancelled.cancel()
        await asyncio.sleep(0)
        assert engine.get_num_unfinished_requests() == 5
        aborted.cancel()
        assert [await before, await during] == expected
        assert await call
        await engine.check_health()
        assert engine.get_num_unfinished_requests() == 0
        assert await engine.reset_prefix_cache()
        engine.shutdown()

    asyncio.run(scenario())


def test_shutdown_while_a_core_is_being_replaced(tiny_llama, own_children):
    async def scenario() -> None:
        engine = start(tiny_llama)
        task = asyncio.create_task(consume(engine, "a", SamplingParams(**LONG), RequestOutputKind.DELTA))
        await asyncio.sleep(0.02)
        kill(engine)
        while engine.is_running:
            await asyncio.sleep(0)
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await task
        assert not own_children()

    asyncio.run(scenario())


def test_a_sleeping_engine_that_dies_still_sleeps(tiny_llama):
    async def scenario() -> None:
        engine = start(tiny_llama)
        await engine.sleep(1)
        kill(engine)
        while engine.is_running:
            await asyncio.sleep(0)
        assert await engine.is_sleeping()
        await engine.wake_up()
        await consume(engine, "a", SamplingParams(), RequestOutputKind.DELTA)
        engine.shutdown()

    asyncio.run(scenario())


# -- requests that kill, engines that will not live -------------------------------------------------------------------


def test_a_request_that_kills_every_core_gets_an_error_and_the_rest_goes_on(tiny_llama):
    params = SamplingParams(**{**LONG, "max_tokens": 60})
    jobs = [(name, params) for name in ("a", "b", "c", "d")]
    expected = undisturbed(tiny_llama, jobs)

    async def scenario() -> None:
        engine = start(tiny_llama, RecoveryPolicy(), logits_processors=["tests.engine.odd_processor:OddProcessor"])
        tasks = [asyncio.create_task(consume(engine, *job, RequestOutputKind.DELTA)) for job in jobs]
        poison = SamplingParams(**LONG, extra_args={"die_at": 5})
        outputs = [output async for output in engine.generate("poison", poison, "poison")]
        assert outputs[-1].finished
        (completion,) = outputs[-1].outputs
        assert completion.finish_reason == "error"
        assert "at least 3 times in a row" in completion.stop_reason
        assert len(completion.token_ids) <= 5  # the last may have been on its way each time
        assert await asyncio.gather(*tasks) == expected
        await consume(engine, *jobs[0], RequestOutputKind.DELTA)  # a new core serves
        await engine.check_health()
        engine.shutdown()

    asyncio.run(scenario())


def test_a_core_that_hangs_is_replaced_and_its_requests_go_on(tiny_llama, caplog):
    params = SamplingParams(**LONG)
    expected = undisturbed(tiny_llama, [("a", params), ("b", params)])

    async def scenario() -> None:
        engine = start(tiny_llama, RecoveryPolicy(), step_timeout_s=1.0)
        stream = asyncio.create_task(consume(engine, "a", params, RequestOutputKind.DELTA))
        await asyncio.sleep(0.02)
        hung = engine.engine_core.process_id
        os.kill(hung, signal.SIGSTOP)
        assert await stream == expected[0]
        assert not is_alive(hung)
        # and one that stands still while it has nothing to do is found out by the next request
        os.kill(engine.engine_core.process_id, signal.SIGSTOP)
        await engine.check_health()
        assert await consume(engine, "b", params, RequestOutputKind.DELTA) == expected[1]
        engine.shutdown()

    asyncio.run(scenario())
    assert caplog.text.count("it hung: it had been silent for 1 s") == 2


def test_a_fault_in_the_scheduler_replaces_the_core_and_is_named(tiny_llama, caplog):
    """What a core gave right before it failed has been given: a request that gets on is not blamed."""
    params = SamplingParams(**{**LONG, "max_tokens": 5})
    expected = undisturbed(tiny_llama, [("a", params)])

    async def scenario() -> None:
        engine = start(tiny_llama, RecoveryPolicy(), worker_cls="tests.engine.worker_extension.ForgetfulScheduler")
        assert [await consume(engine, "a", params, RequestOutputKind.DELTA)] == expected
        await engine.check_health()
        engine.shutdown()

    asyncio.run(scenario())
    assert "KeyError: 'a block that nobody knows'" in caplog.text


@pytest.mark.native_ops
def test_quick_kills_from_outside_blame_nobody(tiny_llama):
    """Under the policy that users have: who is computed at kill after kill is innocent."""
    jobs = [*jobs_of(range(200, 206)), ([7] * 400, SamplingParams(**{**LONG, "max_tokens": 20}))]
    expected = undisturbed(tiny_llama, jobs)
    rng = random.Random(7)

    async def scenario() -> list[Any]:
        engine = start(tiny_llama, RecoveryPolicy(), max_num_batched_tokens=32)
        is_over, has_result = asyncio.Event(), asyncio.Event()

        async def client(number: int) -> list[Any]:
            prompt, params = jobs[number]
            results = []
            while not is_over.is_set() or not results:
                results.append(await consume(engine, prompt, params, RequestOutputKind.DELTA))
                has_result.set()
            return results

        async def killer() -> None:
            for number in range(3 * NUM_KILLS):
                await until_running_again(engine)
                if number % 4 == 0:  # however slow the machine: nobody is alone at kill after kill for ever
                    has_result.clear()
                    await has_result.wait()
                await asyncio.sleep(rng.random() * 0.3)
                kill(engine)
                while engine.is_running:
                    await asyncio.sleep(0)
            is_over.set()

        _, *results = await asyncio.gather(killer(), *(client(number) for number in range(len(jobs))))
        engine.shutdown()
        return results

    for number, results in enumerate(asyncio.run(scenario())):
        assert all(result == expected[number] for result in results), jobs[number]


def test_an_engine_that_dies_too_often_is_dead_and_says_so_to_all(tiny_llama, own_children):
    async def scenario() -> None:
        engine = start(tiny_llama, RecoveryPolicy(max_deaths=1))
        kill(engine)
        while engine.is_running:
            await asyncio.sleep(0.001)
            with contextlib.suppress(EngineDeadError):
                await engine.check_health()
        await until_running_again(engine)
        os.kill(engine.engine_core.process_id, signal.SIGSTOP)  # it will compute nothing
        tasks = [
            asyncio.create_task(consume(engine, name, SamplingParams(**LONG), RequestOutputKind.DELTA)) for name in "ab"
        ]
        await asyncio.sleep(0.02)
        kill(engine)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
        with pytest.raises(EngineDeadError, match="more than 1 times in a row in 60 s"):
            await engine.check_health()
        with pytest.raises(EngineDeadError):
            await consume(engine, "a", SamplingParams(), RequestOutputKind.DELTA)
        assert engine.errored and engine.get_num_unfinished_requests() == 0
        assert not own_children()
        engine.shutdown()

    asyncio.run(scenario())
