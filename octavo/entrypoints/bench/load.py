"""When requests are sent: as a random process of a given rate, with a limit on how many run at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from octavo.entrypoints.bench.datasets import BenchPrompt
from octavo.entrypoints.bench.requests import RequestResult
from octavo.errors import ConfigError


@dataclass(frozen=True)
class LoadOptions:
    """How prompts arrive.

    request_rate: requests per second, infinity for all at once
    burstiness: shape of the gamma distribution of gaps; 1 is a Poisson process, less is burstier, more is steadier
    max_concurrency: None for no limit
    ramp_up: linear or exponential: how the rate grows from start_rate to end_rate, instead of request_rate
    """

    request_rate: float
    burstiness: float
    max_concurrency: int | None
    seed: int
    ramp_up: str | None = None
    start_rate: float = 0.0
    end_rate: float = 0.0

    def __post_init__(self) -> None:
        if not self.request_rate > 0:
            raise ConfigError(f"--request-rate must be above 0 (inf: all at once), got {self.request_rate}")
        if not self.burstiness > 0:
            raise ConfigError(f"--burstiness must be above 0, got {self.burstiness}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"--max-concurrency must be at least 1, got {self.max_concurrency}")
        if self.ramp_up is not None and not (self.start_rate > 0 and self.end_rate > 0):
            raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps above 0")


def arrival_times(count: int, options: LoadOptions) -> list[float]:
    """Return when each request is sent, in seconds after the first moment.

    Gaps are drawn, then stretched so that their sum is what the rate promises: otherwise a short run of few requests
    would be at another rate than it says.
    """
    if options.ramp_up is None and options.request_rate == float("inf"):
        return [0.0] * count
    source = random.Random(options.seed)
    rates = [_rate_at(index, count, options) for index in range(count)]
    shape = options.burstiness
    gaps = [source.gammavariate(shape, 1 / (rate * shape)) for rate in rates]
    promised = sum(1 / rate for rate in rates)
    stretch = promised / sum(gaps) if sum(gaps) else 1.0
    times, now = [], 0.0
    for gap in gaps:
        now += gap * stretch
        times.append(now)
    return times


def _rate_at(index: int, count: int, options: LoadOptions) -> float:
    if options.ramp_up is None:
        return options.request_rate
    progress = index / max(count - 1, 1)
    if options.ramp_up == "linear":
        return options.start_rate + (options.end_rate - options.start_rate) * progress
    rate: float = options.start_rate * (options.end_rate / options.start_rate) ** progress
    return rate


async def run_load(
    prompts: Sequence[BenchPrompt],
    options: LoadOptions,
    send: Callable[[BenchPrompt], Awaitable[RequestResult]],
    on_done: Callable[[], object],
) -> list[RequestResult]:
    """Send all prompts at their times and return their results in order; on_done is called after each."""
    gate = asyncio.Semaphore(options.max_concurrency or len(prompts))

    async def one(prompt: BenchPrompt) -> RequestResult:
        async with gate:
            result = await send(prompt)
        on_done()
        return result

    started = time.perf_counter()
    tasks = []
    for prompt, moment in zip(prompts, arrival_times(len(prompts), options), strict=True):
        wait_s = started + moment - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(one(prompt)))
    return list(await asyncio.gather(*tasks))
