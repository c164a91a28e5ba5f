"""A core in a process of its own: the same results, honest errors, nothing left behind however either side ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import LLM, EngineArgs, SamplingParams
from octavo.engine import core_child
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.process_start import StartingProcess
from octavo.engine.supervisor import RecoveryPolicy
from octavo.engine.sync_mp_client import SyncMPClient
from octavo.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
    UnsupportedError,
)
from octavo.utils.processes import start_python
from tests.engine.processes import SMALL, children_of, comparable, is_alive, wait_until
from tests.invariance.workloads import random_workload

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("meeting_folder", "all_engines_end")
started: list[LLM] = []


@pytest.fixture
def all_engines_end(meeting_folder):
    """A test that fails must not disturb the next one."""
    yield
    while started:
        started.pop().llm_engine.shutdown()


def start_llm(model, *, policy: RecoveryPolicy | None = None, **options) -> LLM:
    """An LLM whose core runs in another process."""
    process = StartingProcess(EngineArgs(model=str(model), **{**SMALL, **options}), policy).wait()
    client = SyncMPClient(process.handle)
    engine = process.engine
    llm = LLM.from_engine(LLMEngine(engine.config, engine.tokenizer, client, engine.max_kv_tokens))
    started.append(llm)
    return llm


def core_process(llm: LLM) -> int:
    return llm.llm_engine.engine_core._replicas.supervisors[0].child.process_id


# -- results and services ----------------------------------------------------------------------------------------------


@pytest.mark.native_ops
@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_gemma3"])
def test_results_equal_those_of_a_core_in_process(fixture, request):
    model = str(request.getfixturevalue(fixture))
    workloads = [random_workload(seed) for seed in range(4)]
    prompts = [prompt for workload in workloads for prompt in workload.prompts]
    params = [one for workload in workloads for one in workload.params]
    expected = LLM(model, **SMALL).generate(prompts, params, use_tqdm=False)
    llm = start_llm(model)
    got = llm.generate(prompts, params, use_tqdm=False)
    llm.llm_engine.shutdown()
    assert [comparable(output) for output in got] == [comparable(output) for output in expected]


def test_the_environment_variable_chooses_the_process(tiny_llama, monkeypatch):
    monkeypatch.setenv("OCTAVO_ENABLE_MULTIPROCESSING", "1")
    llm = LLM(str(tiny_llama), **SMALL)
    assert isinstance(llm.llm_engine.engine_core, SyncMPClient)
    assert is_alive(core_process(llm))
    assert llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].finish_reason == "length"
    llm.llm_engine.shutdown()
    monkeypatch.setenv("OCTAVO_ENABLE_MULTIPROCESSING", "yes")
    with pytest.raises(ConfigError, match="must be 0 or 1"):
        LLM(str(tiny_llama), **SMALL)


def test_a_length_that_the_core_fits_to_its_memory_is_the_front_ends_limit(tiny_llama):
    options = {"kv_cache_memory_bytes": 2**15}
    here = LLM(str(tiny_llama), **{**SMALL, **options})
    there = start_llm(tiny_llama, **options)
    assert there.model_config.max_model_len == here.model_config.max_model_len < 512
    there.llm_engine.shutdown()


def test_services_answer(tiny_llama):
    llm = start_llm(tiny_llama)
    llm.generate([[1] * 40], SamplingParams(max_tokens=1), use_tqdm=False)
    assert llm.reset_prefix_cache() is True
    values = {metric.name.partition(":")[2]: metric for metric in llm.get_metrics()}
    assert values["num_requests_running"].value == 0
    assert llm.llm_engine.take_kv_events() == []
    llm.llm_engine.check_health()
    llm.llm_engine.shutdown()


def test_worker_methods_are_called_by_name_with_plain_data(tiny_llama):
    llm = start_llm(tiny_llama, worker_extension_cls="tests.engine.worker_extension.Extension")
    assert llm.collective_rpc("repeat", args=("ab",), kwargs={"times": 2}) == [["ab", "ab"]]
    assert llm.collective_rpc("process_id") == [core_process(llm)]
    with pytest.raises(UnsupportedError, match="name of a worker method"):
        llm.collective_rpc(lambda worker: 1)
    with pytest.raises(UnsupportedError, match="plain data"):
        llm.apply_model(lambda model: 1)
    with pytest.raises(UnsupportedError, match="no_such_method"):
        llm.collective_rpc("no_such_method")
    with pytest.raises(RequestFailedError, match="object"):
        llm.collective_rpc("unsendable")
    assert llm.collective_rpc("repeat", args=("still", 1)) == [["still"]]
    llm.llm_engine.shutdown()


def test_the_front_end_loads_neither_ops_nor_worker():
    code = (
        "import sys\n"
        "from octavo import AsyncLLM, EngineArgs\n"
        "engine = AsyncLLM.from_engine_args(EngineArgs(max_model_len=64))\n"
        "engine.shutdown()\n"
        "loaded = [m for m in sys.modules if m in ('octavo._native', 'octavo.ops.native', 'octavo.ops.reference')"
        " or m.startswith('octavo.worker')]\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# -- starts that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"block_size": 0}, ConfigError, "block_size"),
        ({"model": "/no/such/model"}, ModelNotFoundError, "/no/such/model"),
        ({"prefill_context_parallel_size": 2}, UnsupportedError, "prefill_context_parallel_size"),
    ],
)
def test_wrong_options_raise_what_they_raise_in_process(tiny_llama, options, error, text):
    with pytest.raises(error, match=text):
        start_llm(**{"model": tiny_llama, **options})


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"kv_cache_memory_bytes": 100, "max_model_len": 64}, ConfigError, "KV cache"),  # the core finds it
        ({"worker_cls": "tests.engine.worker_extension.Broken"}, EngineDeadError, "ZeroDivisionError"),
        ({"worker_cls": "tests.engine.worker_extension.Killed"}, EngineDeadError, "signal 9"),
    ],
)
def test_what_goes_wrong_in_the_process_is_raised_here(tiny_llama, options, error, text):
    with pytest.raises(error, match=text):
        start_llm(tiny_llama, **options)


def test_broken_weights_are_a_checkpoint_error(tiny_llama, tmp_path):
    for path in tiny_llama.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = next(tmp_path.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(CheckpointError):
        start_llm(tmp_path)


def test_a_start_that_is_given_up_leaves_nothing(tiny_llama, own_children):
    starting = StartingProcess(EngineArgs(model=str(tiny_llama), **SMALL))
    assert own_children()
    starting.close()
    starting.close()
    assert not own_children()


def test_ctrl_c_just_when_the_process_starts_leaves_nothing(tiny_llama, own_children, monkeypatch):
    def start(*args, **options):
        process = start_python(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(core_child, "start_python", start)
    with pytest.raises(KeyboardInterrupt):
        StartingProcess(EngineArgs(model=str(tiny_llama), **SMALL))
    assert not own_children()


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("in_process", [True, False])
def test_llm_sleeps_and_goes_on_afterwards(tiny_llama, in_process, level):
    options = {"worker_extension_cls": "tests.engine.worker_extension.Extension"}
    llm = LLM(str(tiny_llama), **SMALL, **options) if in_process else start_llm(tiny_llama, **options)
    params = SamplingParams(max_tokens=9, temperature=0)
    expected = llm.generate("once", params, use_tqdm=False)[0].outputs[0].token_ids
    llm.enqueue("once", params)
    llm.sleep(level)
    assert llm.collective_rpc("holds_memory") == [[level == 0, level < 2]]
    for call in (lambda: llm.generate("once", params), llm.wait_for_completion):
        with pytest.raises(InvalidRequestError, match=r"call wake_up\(\)"):
            call()
    llm.wake_up(tags=["weights"])
    llm.wake_up(tags=["kv_cache"])
    assert llm.wait_for_completion(use_tqdm=False)[0].outputs[0].token_ids == expected
    assert llm.generate("once", params, use_tqdm=False)[0].outputs[0].token_ids == expected
    with pytest.raises(InvalidRequestError, match="level"):
        llm.sleep(3)


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
def test_llm_goes_on_when_its_process_is_killed(tiny_llama):
    workload = random_workload(11)
    expected = LLM(str(tiny_llama), **SMALL).generate(workload.prompts, workload.params, use_tqdm=False)
    llm = start_llm(tiny_llama)
    os.kill(core_process(llm), signal.SIGKILL)  # between two calls
    got = llm.generate(workload.prompts, workload.params, use_tqdm=False)
    steps = iter(range(10**6))
    step = llm.llm_engine.step

    def step_and_kill():
        if next(steps) in (3, 9):
            os.kill(core_process(llm), signal.SIGKILL)
        return step()

    llm.llm_engine.step = step_and_kill
    again = llm.generate(workload.prompts, workload.params, use_tqdm=False)
    llm.llm_engine.shutdown()
    assert [comparable(output) for output in got] == [comparable(output) for output in expected]
    assert [comparable(output) for output in again] == [comparable(output) for output in expected]


def test_an_llm_whose_process_will_not_live_says_so(tiny_llama):
    llm = start_llm(tiny_llama, policy=RecoveryPolicy(max_deaths=0))
    os.kill(core_process(llm), signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="signal 9"):
        llm.generate("a", SamplingParams(max_tokens=2))
    assert not llm.llm_engine.has_unfinished_requests()
    with pytest.raises(EngineDeadError):
        llm.llm_engine.check_health()
    with pytest.raises(EngineDeadError):
        llm.generate("a", SamplingParams(max_tokens=2))
    llm.llm_engine.shutdown()


def test_a_core_that_is_sent_what_it_cannot_read_is_replaced(tiny_llama):
    llm = start_llm(tiny_llama)
    first = core_process(llm)
    llm.llm_engine.engine_core._replicas.supervisors[0].child.send(b"no message")
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    (output,) = llm.generate("a", params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"
    assert core_process(llm) != first


FRONT_END = """
import os, sys, time
from octavo import AsyncLLM, EngineArgs
engine = AsyncLLM.from_engine_args(EngineArgs(model=sys.argv[1], max_model_len=64))
print(engine.engine_core.process_id, flush=True)
{then}
"""


def start_front_end(model, then: str) -> tuple[subprocess.Popen[str], int]:
    """Start a program with an engine; return it and the core's process id."""
    code = FRONT_END.format(then=then)
    program = subprocess.Popen([sys.executable, "-c", code, str(model)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    process_id = int(program.stdout.readline())
    program.stdout.close()
    return program, process_id


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_when_the_front_end_is_ended_by_a_signal_nothing_is_left(tiny_llama, meeting_folder, number):
    program, process_id = start_front_end(tiny_llama, "time.sleep(1000)")
    assert is_alive(process_id)
    assert list(meeting_folder.glob("octavo-*"))
    program.send_signal(number)
    program.wait()
    wait_until(lambda: not is_alive(process_id))


@pytest.mark.parametrize("then", ["", "raise SystemExit(3)", "os._exit(0)", "del engine"])
def test_a_program_that_forgets_to_shut_down_ends_and_leaves_nothing(tiny_llama, then):
    program, process_id = start_front_end(tiny_llama, then)
    program.wait()
    wait_until(lambda: not is_alive(process_id))


def test_a_program_that_is_killed_while_the_core_starts_leaves_nothing(tiny_llama):
    code = "import sys; from octavo import AsyncLLM, EngineArgs; AsyncLLM.from_engine_args(EngineArgs(sys.argv[1]))"
    program = subprocess.Popen([sys.executable, "-c", code, str(tiny_llama)], cwd=ROOT)
    wait_until(lambda: children_of(program.pid))
    (process_id,) = children_of(program.pid)
    program.kill()
    program.wait()
    wait_until(lambda: not is_alive(process_id))
