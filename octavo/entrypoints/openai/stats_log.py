"""The line about speed and load that a busy server writes every few seconds."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from octavo.log import get_logger
from octavo.metrics.stats_line import StatsLine

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

logger = get_logger(__name__)


async def log_stats_forever(engine: AsyncLLM, interval_s: float) -> None:
    """Write a line every interval_s while there is work, one more when it has ended, and none when idle."""
    if not interval_s or not engine.metrics.enabled:
        return
    line = StatsLine(await engine.metrics_of_all(), time.monotonic())
    was_busy = False
    while True:
        await asyncio.sleep(interval_s)
        text, is_busy = line.next(await engine.metrics_of_all(), time.monotonic())
        if is_busy or was_busy:
            logger.info("%s", text)
        was_busy = is_busy
