"""The hub between front ends and a core: what one is told, all do, in one order; who ends, ends without a trace."""

from __future__ import annotations

import asyncio
import functools
import socket
from pathlib import Path

import pytest

from octavo import EngineArgs, SamplingParams
from octavo.engine import hub as hub_module
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.core_messages import CallService
from octavo.engine.hub import FrontEnd, Hub
from octavo.engine.hub_client import HubClient
from octavo.engine.hub_messages import FrontEndReady, Welcome, decode_from_hub, encode
from octavo.engine.llm_engine import metrics_of
from octavo.engine.process_start import StartedProcess, StartingProcess
from octavo.utils.frames import receive_frame, send_frame
from tests.engine.processes import SMALL

LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def join(hub: Hub, process: StartedProcess) -> tuple[AsyncLLM, FrontEnd]:
    """Return another front end, in this process."""
    theirs, mine = socket.socketpair()
    front_end = hub.connect(theirs)
    welcome = decode_from_hub(receive_frame(mine))
    assert isinstance(welcome, Welcome)
    engine = AsyncLLM(process.engine, None, functools.partial(HubClient, mine, welcome, lambda: None))
    engine.streams.attach()
    engine.engine_core.tell_ready()
    return engine, front_end


async def answer(engine: AsyncLLM, params: SamplingParams = LONG) -> list[int]:
    outputs = [output async for output in engine.generate([5, 6, 7], params, "same id")]
    return list(outputs[-1].outputs[0].token_ids)


async def run(process: StartedProcess) -> None:
    hub = Hub(process.handle, metrics_of(process.engine.config))
    (first, _), (second, second_end) = join(hub, process), join(hub, process)
    try:
        assert await answer(first) == await answer(second)  # with one id at the same time, nothing is mixed up
        assert (await first.metrics_of_all()).totals()["generation_tokens"] == 800

        await first.pause_generation(mode="keep")
        waiting = asyncio.ensure_future(answer(second))
        await asyncio.sleep(0.05)
        late, _ = join(hub, process)
        await asyncio.sleep(0)
        assert not waiting.done() and await second.is_paused() and await late.is_paused()
        await late.resume_generation()
        assert len(await waiting) == 400 and not await first.is_paused()

        assert (await first.metrics_of_all()).totals()["generation_tokens"] == 1200
        doomed = asyncio.ensure_future(answer(second))
        while not second_end.request_ids:
            await asyncio.sleep(0.001)
        second.shutdown()
        await second_end.ended.wait()
        await asyncio.gather(doomed, return_exceptions=True)
        while (await first.metrics_of_all()).scheduler.num_running:
            await asyncio.sleep(0.001)
        assert (await first.metrics_of_all()).totals()["generation_tokens"] == 1200  # as it last told
        assert len(await answer(first)) == 400
    finally:
        hub.shutdown()


async def serve_beside_a_silent_one(process: StartedProcess) -> None:
    hub = Hub(process.handle, metrics_of(process.engine.config))
    first, _ = join(hub, process)
    theirs, silent = socket.socketpair()
    hub.connect(theirs)
    send_frame(silent, encode(FrontEndReady()))
    try:
        await answer(first)
        for mode in ("abort", "wait", "keep"):
            await asyncio.wait_for(first.pause_generation(mode=mode), 20)
            await asyncio.wait_for(first.resume_generation(), 20)
        assert len(await answer(first)) == 400
        silent.setblocking(True)
        messages = [decode_from_hub(receive_frame(silent)) for _ in range(8)]
        calls = [message.method for message in messages if isinstance(message, CallService)]
        assert calls == ["hold", "release", "hold", "drain", "release", "hold", "release"]  # it can still obey
    finally:
        hub.shutdown()
        silent.close()


async def count_those_that_ended(process: StartedProcess) -> None:
    hub = Hub(process.handle, metrics_of(process.engine.config))
    first, _ = join(hub, process)

    async def three() -> list[tuple[str, str, int]]:
        return [("http", "/a", 1), ("rejected", "b", 2)]

    async def none() -> list[tuple[str, str, int]]:
        return []

    first.engine_core.services["server_counts"] = none
    try:
        for number in range(1, 4):
            other, end = join(hub, process)
            other.engine_core.services["server_counts"] = three
            while not end.is_ready:
                await asyncio.sleep(0.001)
            await first.engine_core.call_front_ends("server_counts")
            other.shutdown()
            await end.ended.wait()
            answers = await first.engine_core.call_front_ends("server_counts")
            assert answers == [[["http", "/a", number], ["rejected", "b", 2 * number]], []]  # one sum, however many
    finally:
        hub.shutdown()


@pytest.mark.parametrize("work", [run, serve_beside_a_silent_one, count_those_that_ended])
def test_front_ends_share_a_core_and_come_and_go(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, work):
    monkeypatch.setattr(hub_module, "_ANSWER_TIMEOUT_S", 0.2)
    process = StartingProcess(EngineArgs(model=str(tiny_llama), **SMALL)).wait()
    try:
        asyncio.run(work(process))
    finally:
        process.handle.close()
