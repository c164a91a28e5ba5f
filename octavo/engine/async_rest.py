"""Pausing and sleeping of AsyncLLM, as functions of the engine: in every front end alike, whichever is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

PauseMode = Literal["abort", "wait", "keep"]


def check_rest(level: object, mode: object) -> None:
    """Raise InvalidRequestError for what `sleep` does not know."""
    if mode not in ("abort", "wait", "keep"):
        raise InvalidRequestError(f"mode must be abort, wait or keep, got {mode!r}", "mode")
    if type(level) is not int or level not in (0, 1, 2):
        raise InvalidRequestError(
            f"level must be 0 (compute nothing), 1 (KV cache) or 2 (KV cache and weights), got {level!r}", "level"
        )


async def pause_generation(engine: AsyncLLM, *, mode: PauseMode = "abort", clear_cache: bool = True) -> None:
    """Let new requests wait until `resume_generation`.

    mode: what becomes of running requests. abort: they end; wait: they finish first; keep: they stand still
    clear_cache: also forget the cached prefixes
    """
    check_rest(0, mode)
    engine.streams.attach()
    core = engine.engine_core
    await core.call_front_ends("hold", mode == "abort", standing="hold")
    if mode == "keep":
        await core.call("pause")
    elif mode == "wait":
        await core.call("resume")  # they may stand still since an earlier pause
        await core.call_front_ends("drain")
    if clear_cache:
        await engine.reset_prefix_cache(reset_running_requests=True)


async def resume_generation(engine: AsyncLLM) -> None:
    """Go on after `pause_generation`."""
    await engine.engine_core.call("resume")
    await engine.engine_core.call_front_ends("release", standing="hold")


async def is_paused(engine: AsyncLLM) -> bool:
    """Say whether new requests wait."""
    return not engine.streams.gate.is_set()


async def sleep(engine: AsyncLLM, level: int = 1, mode: PauseMode = "abort") -> None:
    """Rest until `wake_up`; requests wait. level 0: compute nothing; 1: give the KV cache back; 2: and the weights.

    mode: see `pause_generation`
    """
    check_rest(level, mode)
    await pause_generation(engine, mode=mode, clear_cache=level > 0)
    if level:
        await engine.engine_core.call("sleep", level)


async def wake_up(engine: AsyncLLM, tags: Sequence[str] | None = None) -> None:
    """Take the memory again and go on with requests. tags: accepted for vLLM's sake; everything wakes up."""
    await engine.engine_core.call("wake_up")
    await resume_generation(engine)


async def is_sleeping(engine: AsyncLLM) -> bool:
    """Say whether the engine sleeps, at level 0 too; paused by `pause_generation` is the same as that."""
    has_given_memory_back: bool = await engine.engine_core.call("is_sleeping")
    return has_given_memory_back or await is_paused(engine)
