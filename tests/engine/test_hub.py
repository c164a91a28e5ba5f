"""The hub between front ends and a core: what one is told, all do, in one order; who ends, ends without a trace."""

from __future__ import annotations

import asyncio
import functools
import socket
from pathlib import Path

from octavo import EngineArgs, SamplingParams
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.hub import FrontEnd, Hub
from octavo.engine.hub_client import HubClient
from octavo.engine.hub_messages import Welcome, from_hub_decoder
from octavo.engine.llm_engine import metrics_of
from octavo.engine.process_start import StartedProcess, StartingProcess
from octavo.utils.frames import receive_frame
from tests.engine.processes import SMALL

LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def join(hub: Hub, process: StartedProcess) -> tuple[AsyncLLM, FrontEnd]:
    """Return another front end, in this process."""
    theirs, mine = socket.socketpair()
    front_end = hub.connect(theirs)
    welcome = from_hub_decoder.decode(receive_frame(mine))
    assert isinstance(welcome, Welcome)
    engine = AsyncLLM(process.engine, functools.partial(HubClient, mine, welcome, lambda: None))
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


def test_front_ends_share_a_core_and_come_and_go(tiny_llama: Path):
    process = StartingProcess(EngineArgs(model=str(tiny_llama), **SMALL)).wait()
    try:
        asyncio.run(run(process))
    finally:
        process.handle.close()
