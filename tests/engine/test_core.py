"""The core's step: its order, what a failed or interrupted step leaves behind, aborts from another thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from octavo import SamplingParams
from octavo.errors import EngineDeadError, RequestFailedError
from octavo.types.adapters import Adapter
from octavo.types.request import EngineCoreRequest
from tests.engine.fakes import fake_engine, mixes, says

GREEDY = {"temperature": 0.0, "max_tokens": 20}


def raise_once(error: BaseException):
    """Return a hook that raises on its first call."""
    pending = [error]

    def hook(step):
        if pending:
            raise pending.pop()

    return hook


@pytest.mark.parametrize("moment", ["before_execute", "before_sample"])
def test_a_failed_step_ends_its_requests_with_an_error_and_the_engine_goes_on(moment):
    fake = fake_engine(says("hello"), max_num_seqs=2)
    for request_id in "abc":
        fake.engine.add_request(request_id, "hi", SamplingParams(**GREEDY))
    setattr(fake.executor, moment, raise_once(RuntimeError("out of memory")))
    ends = {request_id: outputs[-1].outputs[0] for request_id, outputs in fake.run().items()}
    assert {i: end.finish_reason for i, end in ends.items()} == {"a": "error", "b": "error", "c": "stop"}
    assert ends["a"].stop_reason == "RuntimeError: out of memory"
    assert ends["c"].text == "hello"
    assert fake.scheduler.make_stats().kv_cache_usage == 0
    assert fake.complete("hi", **GREEDY).outputs[0].text == "hello"


def test_rows_of_a_failed_step_are_given_up_later():
    """The notices of a step that failed before the workers read it are sent again with the next one."""
    fake = fake_engine(mixes)
    fake.engine.add_request("short", "hi", SamplingParams(temperature=0.0, max_tokens=1))
    fake.engine.add_request("long", "hi", SamplingParams(**GREEDY))
    fake.engine.step()
    assert len(fake.executor.rows) == 2
    fake.executor.before_execute = raise_once(RuntimeError("broken"))
    fake.engine.step()  # was to tell that "short" finished
    fake.complete("next", **GREEDY)
    assert {request_id.partition("-")[0] for request_id in fake.executor.rows} == {"r"}


def test_preempted_rows_of_a_failed_step_are_given_up_later():
    fake = fake_engine(mixes, kv_bytes=256 * 14, max_model_len=48)
    for index in range(3):
        fake.engine.add_request(str(index), f"prompt number {index}", SamplingParams(**GREEDY))

    def fail_on_preemption(step):
        if step.preempted_request_ids:
            fake.executor.before_execute = lambda step: None
            raise RuntimeError("broken")

    fake.executor.before_execute = fail_on_preemption
    outputs = fake.run()
    assert {o[-1].outputs[0].finish_reason for o in outputs.values()} == {"error", "length"}
    fake.complete("next", **GREEDY)
    assert {request_id.partition("-")[0] for request_id in fake.executor.rows} == {"r"}
    assert fake.scheduler.make_stats().kv_cache_usage == 0


@pytest.mark.parametrize("moment", ["before_execute", "before_sample"])
def test_an_interrupt_within_a_step_leaves_a_usable_engine(moment):
    fake = fake_engine(says("hello"))
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    setattr(fake.executor, moment, raise_once(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        fake.engine.step()
    (output,) = fake.engine.step()
    assert (output.finished, output.outputs[0].finish_reason) == (True, "error")
    assert fake.scheduler.make_stats().kv_cache_usage == 0
    assert fake.complete("hi", **GREEDY).outputs[0].text == "hello"


def test_an_interrupt_while_grammars_are_waited_for_leaves_a_usable_engine(monkeypatch):
    fake = fake_engine(says("hello"))
    core = fake.engine.engine_core.engine_core
    monkeypatch.setattr(core, "_grammars", SimpleNamespace(wait=raise_once(KeyboardInterrupt()), close=bool))
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fake.scheduler, "_schedule_waiting", lambda plan: None)  # as if its grammar were not there yet
        fake.engine.step()
    assert fake.run()["a"][-1].outputs[0].text == "hello"


def test_a_dead_executor_is_not_mistaken_for_a_failed_step():
    fake = fake_engine()
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    fake.executor.before_execute = raise_once(EngineDeadError("worker 0 has died"))
    with pytest.raises(EngineDeadError, match="worker 0"):
        fake.engine.step()


@pytest.mark.parametrize("method", ["schedule", "update_from_output", "get_grammar_bitmask", "make_stats"])
def test_a_fault_in_the_bookkeeping_ends_the_engine_or_the_request_but_is_never_raised_raw(method, monkeypatch):
    fake = fake_engine()
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    monkeypatch.setattr(fake.scheduler, method, lambda *args: {}["a block that nobody knows"])
    if method == "get_grammar_bitmask":
        (output,) = fake.engine.step()
        assert output.outputs[0].finish_reason == "error"
        return
    with pytest.raises(EngineDeadError, match="KeyError: 'a block that nobody knows'"):
        fake.engine.step()
    monkeypatch.undo()
    assert not fake.engine.has_unfinished_requests()
    for ask in (
        fake.engine.step,
        fake.engine.check_health,
        lambda: fake.engine.add_request("b", "hi", SamplingParams(**GREEDY)),
    ):
        with pytest.raises(EngineDeadError, match="bookkeeping"):
            ask()
    fake.engine.abort_request("a")
    assert fake.executor.steps[1:] == []


@pytest.mark.parametrize("method", ["add_request", "finish_requests"])
def test_a_fault_while_requests_come_and_go_ends_the_engine(method, monkeypatch):
    fake = fake_engine()
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    monkeypatch.setattr(fake.scheduler, method, lambda *args: {}["a block that nobody knows"])
    with pytest.raises(EngineDeadError, match="KeyError"):
        if method == "add_request":
            fake.engine.add_request("b", "hi", SamplingParams(**GREEDY))
        else:
            fake.engine.abort_request("a")
    with pytest.raises(EngineDeadError):
        fake.engine.check_health()


def test_an_adapter_for_which_there_is_no_memory_ends_its_request_alone(monkeypatch):
    fake = fake_engine(says("hello"))

    def load(*args, **kwargs):
        raise MemoryError("9 GiB")

    monkeypatch.setattr(fake.executor, "collective_rpc", load)
    request = EngineCoreRequest("r", [1], SamplingParams(), 0.0, 1, adapter=Adapter("a", 1, "/large", "abc"))
    with pytest.raises(RequestFailedError, match=r"the LoRA adapter at /large .* MemoryError: 9 GiB"):
        fake.engine.engine_core.add_request(request)
    assert fake.complete("hi", **GREEDY).outputs[0].text == "hello"


def test_aborts_queued_during_the_forward_take_effect_in_the_same_step():
    fake = fake_engine(mixes)
    core = fake.engine.engine_core.engine_core
    for request_id in "ab":
        fake.engine.add_request(request_id, "hi", SamplingParams(**GREEDY))
    fake.engine.step()
    first_id = next(iter(fake.executor.rows))

    def abort_meanwhile(step):
        thread = threading.Thread(target=core.queue_abort, args=([first_id],))
        thread.start()
        thread.join()

    fake.executor.before_sample = abort_meanwhile
    outputs = core.step()
    assert outputs.scheduler_stats.num_step_tokens > 0
    assert [output.request_id for output in outputs.outputs] == [i for i in fake.executor.rows if i != first_id]
    assert len(fake.scheduler.running) == 1


def test_a_step_without_work_does_nothing():
    fake = fake_engine()
    core = fake.engine.engine_core.engine_core
    assert not core.has_work()
    assert core.step() is None
    assert fake.executor.steps == []


def test_a_grammar_mask_is_asked_for_between_execute_and_sample(monkeypatch):
    fake = fake_engine(says("x"))
    order = []
    scheduler = fake.scheduler
    original = scheduler.get_grammar_bitmask
    fake.executor.before_execute = lambda step: order.append("execute")
    fake.executor.before_sample = lambda step: order.append("sample")
    monkeypatch.setattr(scheduler, "get_grammar_bitmask", lambda step: order.append("mask") or original(step))
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    fake.engine.step()
    assert order == ["execute", "mask", "sample"]


def test_the_statistics_of_a_step_come_with_it():
    fake = fake_engine()
    core = fake.engine.engine_core.engine_core
    fake.engine.add_request("a", "a long prompt", SamplingParams(**GREEDY))
    stats = core.step().scheduler_stats
    assert (stats.num_running, stats.prefix_cache.queries) == (1, 13)


def test_shutdown_reaches_the_executor():
    fake = fake_engine()
    fake.engine.check_health()
    fake.engine.shutdown()
    assert fake.executor.is_shut_down


# -- several steps at a time -------------------------------------------------------------------------------------------


def pipelined(depth: int = 2, **options):
    """An engine whose executor works on several steps at a time."""
    fake = fake_engine(mixes, num_batches_in_flight=depth, **options)
    fake.executor.max_concurrent_batches = depth
    return fake


def test_as_many_steps_are_started_as_the_executor_takes_and_results_come_in_order():
    alone, fake = fake_engine(mixes), pipelined()
    for engine in (alone, fake):
        for index in range(5):
            engine.engine.add_request(str(index), f"prompt number {index}", SamplingParams(**GREEDY, seed=index))
    fake.engine.step()
    assert len(fake.executor.steps) == 2
    texts = {i: outputs[-1].outputs[0].text for i, outputs in fake.run().items()}
    assert texts == {i: outputs[-1].outputs[0].text for i, outputs in alone.run().items()}
    assert fake.scheduler.make_stats().kv_cache_usage == 0
    steps = [step for step in fake.executor.steps if step.num_scheduled_tokens]
    assert all(len(step.num_scheduled_tokens) <= 3 for step in steps)


def test_one_request_alone_waits_for_its_own_step():
    fake = pipelined(3)
    assert fake.complete("hi", **GREEDY).outputs[0].text == fake_engine(mixes).complete("hi", **GREEDY).outputs[0].text
    assert all(step.num_scheduled_tokens for step in fake.executor.steps), "no empty steps between"


@pytest.mark.parametrize("moment", ["before_execute", "before_sample"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_step_that_fails_among_others_ends_only_its_own_requests(moment, error):
    fake = pipelined()
    for request_id in "abcd":
        fake.engine.add_request(request_id, "hi", SamplingParams(**GREEDY))

    def fail_for_d(step):
        if any(request_id.startswith("d") for request_id in step.num_scheduled_tokens):
            setattr(fake.executor, moment, lambda step: None)
            raise error

    setattr(fake.executor, moment, fail_for_d)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            fake.engine.step()
    reasons = {request_id: outputs[-1].outputs[0].finish_reason for request_id, outputs in fake.run().items()}
    assert reasons == {"a": "length", "b": "length", "c": "error", "d": "error"}
    assert fake.scheduler.make_stats().kv_cache_usage == 0


# -- steps ahead -------------------------------------------------------------------------------------------------------


def running_ahead(next_token=mixes):
    fake = fake_engine(next_token, async_scheduling=True)
    fake.executor.max_concurrent_batches = 2
    return fake


def test_steps_ahead_bring_the_same_outputs():
    alone, fake = fake_engine(mixes), running_ahead()
    for engine in (alone, fake):
        for index in range(2, 13):  # more than run at a time
            params = SamplingParams(max_tokens=index, n=1 + index % 2, stop=["e"] if index % 3 else None, seed=index)
            engine.engine.add_request(str(index), f"prompt number {index}", params)
    fake.engine.step()
    assert len(fake.executor.steps) == 2
    texts = [
        {i: [(output.text, output.finish_reason) for output in outputs[-1].outputs] for i, outputs in run.items()}
        for run in (fake.run(), alone.run())
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 11
    while fake.engine.engine_core.engine_core.has_work():
        fake.engine.step()
    assert fake.scheduler.make_stats().kv_cache_usage == 0
    assert not fake.executor.rows.keys() - {i for step in fake.executor.steps[-1:] for i in step.num_scheduled_tokens}


@pytest.mark.parametrize("moment", ["before_execute", "before_sample"])
def test_a_step_that_fails_ahead_of_another_ends_its_own_requests_and_the_rest_runs_again(moment):
    expected = fake_engine(mixes).complete("hi there, this is common", **GREEDY, seed=1).outputs[0].text
    fake = running_ahead()
    fake.engine.add_request("a", "hi there, this is common", SamplingParams(**GREEDY, seed=1))
    core = fake.engine.engine_core.engine_core
    started = []

    def fail_once(step):
        if not started:
            started.append(step)
            fake.engine.add_request("b", "hi there, this is common", SamplingParams(**GREEDY, seed=1))
            raise RuntimeError("broken")

    setattr(fake.executor, moment, fail_once)
    outputs = {request_id: outputs[-1].outputs[0] for request_id, outputs in fake.run().items()}
    assert outputs["a"].finish_reason == "error" and outputs["b"].text == expected
    assert core.dead_error is None
    assert fake.scheduler.make_stats().kv_cache_usage == 0


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_vocabulary_holds_up_a_core_only_while_it_has_no_work(is_busy: bool, monkeypatch):
    fake = fake_engine(says("hello"))
    core = fake.engine.engine_core.engine_core
    learnt = []
    grammars = SimpleNamespace(load_vocabulary=lambda packed, beside_steps: learnt.append(beside_steps), close=bool)
    monkeypatch.setattr(core, "_grammars", grammars)
    if is_busy:
        fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    core.load_vocabulary(b"")
    assert learnt == [is_busy]
