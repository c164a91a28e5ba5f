"""/octavo/state: the engine as it is now, for the page at / and for scripts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from octavo.types.stats import EngineSnapshot, RequestProgress

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.entrypoints.openai.state import RequestContext, ServerState

_MAX_REQUESTS = 100
_MAX_AGE_S = 0.2  # many pages that look cost the engine no more than one
_TIMEOUT_S = 2.0  # while an engine process is replaced there is nothing to see


class LiveRequest(msgspec.Struct):
    """How far a request is, in tokens."""

    id: str
    is_running: bool
    num_prompt_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_output_tokens: int


class LiveState(msgspec.Struct, kw_only=True):
    """The engine. time_s: of a steady clock, for rates between two answers; totals: counters since the start

    process_id: of the server process that answers

    blocks: base64 of a byte per KV cache block: 0 free, 1 cached, 2 used, 3 shared, 4 never used; null while there is
    no engine
    """

    model: str
    version: str
    process_id: int
    is_ready: bool
    time_s: float
    max_model_len: int
    max_num_seqs: int
    block_size: int
    num_running: int
    num_waiting: int
    totals: dict[str, int]
    blocks: str | None
    requests: list[LiveRequest]


class LiveView:
    """Looks at the engine for all who ask, at most every _MAX_AGE_S."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._taken_s = float("-inf")
        self._snapshot: EngineSnapshot | None = None
        self._looking: asyncio.Task[EngineSnapshot | None] | None = None

    async def snapshot(self) -> EngineSnapshot | None:
        """Return what the core holds, or None when it does not answer in time."""
        if time.monotonic() - self._taken_s < _MAX_AGE_S:
            return self._snapshot
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)  # one who leaves does not take it from the others

    async def _look(self) -> EngineSnapshot | None:
        try:
            call = self._engine.engine_core.call_each("snapshot", _MAX_REQUESTS, serving_only=True)
            self._snapshot = _joined(msgspec.convert(await asyncio.wait_for(call, _TIMEOUT_S), list[EngineSnapshot]))
        except asyncio.TimeoutError:
            self._snapshot = None
        self._taken_s = time.monotonic()
        return self._snapshot


async def show_state(server: ServerState, context: RequestContext) -> LiveState:
    """Return the engine as it is now; raises EngineDeadError (503) when there will be none any more."""
    from octavo import __version__

    engine = server.engine
    if engine.dead_error is not None:
        raise engine.dead_error
    snapshot = await server.live_view.snapshot() if engine.is_running else None
    metrics = await engine.metrics_of_all()
    scheduler = metrics.scheduler
    return LiveState(
        model=server.model_names[0],
        version=__version__,
        process_id=os.getpid(),
        is_ready=engine.is_running,
        time_s=time.monotonic(),
        max_model_len=server.max_model_len,
        max_num_seqs=engine.config.max_running_sequences,
        block_size=engine.config.cache.block_size,
        num_running=snapshot.num_running if snapshot else scheduler.num_running,
        num_waiting=snapshot.num_waiting if snapshot else scheduler.num_waiting,
        totals=metrics.totals(),
        blocks=None if snapshot is None else msgspec.to_builtins(snapshot.block_states),
        requests=[] if snapshot is None else [_live(request) for request in snapshot.requests],
    )


def _joined(snapshots: Sequence[EngineSnapshot]) -> EngineSnapshot | None:
    """Return what all replicas that answer hold, one after another."""
    if not snapshots:
        return None
    requests = sorted(
        chain.from_iterable(one.requests for one in snapshots), key=lambda request: not request.is_running
    )
    return EngineSnapshot(
        block_states=b"".join(one.block_states for one in snapshots),
        num_running=sum(one.num_running for one in snapshots),
        num_waiting=sum(one.num_waiting for one in snapshots),
        requests=requests[:_MAX_REQUESTS],
    )


def _live(request: RequestProgress) -> LiveRequest:
    return LiveRequest(
        request.request_id,
        request.is_running,
        request.num_prompt_tokens,
        request.num_computed_tokens,
        request.num_output_tokens,
        request.max_output_tokens,
    )
