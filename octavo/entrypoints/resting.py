"""Sleeping of LLM, as functions of it: its engine's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.engine.async_rest import PauseMode

if TYPE_CHECKING:
    from octavo.entrypoints.llm import LLM


def sleep(llm: LLM, level: int = 1, mode: PauseMode = "abort") -> None:
    """Rest until `wake_up`. level 0: compute nothing; 1: give the KV cache back; 2: and the weights.

    mode: accepted for vLLM's sake: nothing runs between calls, and what was enqueued goes on afterwards
    """
    llm.llm_engine.sleep(level, mode)


def wake_up(llm: LLM, tags: Sequence[str] | None = None) -> None:
    """Take the memory again. tags: accepted for vLLM's sake; everything wakes up."""
    llm.llm_engine.wake_up()
