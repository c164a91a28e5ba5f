"""From the results of all requests to the numbers of a serving benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from octavo.entrypoints.bench.requests import RequestResult
from octavo.entrypoints.bench.statistics import deviation, mean, percentile
from octavo.errors import ConfigError

_TITLES: Mapping[str, str] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True)
class LatencySummary:
    """One latency in milliseconds. percentiles: (percent, value)"""

    name: str
    title: str
    mean_ms: float
    median_ms: float
    std_ms: float
    percentiles: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class ServingMetrics:
    """A whole run; rates per second. request_goodput: None without goals; the peaks are over whole seconds."""

    completed: int
    failed: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    peak_output_throughput: float
    peak_concurrent_requests: int
    latencies: tuple[LatencySummary, ...]


def parse_goodput(goals: Iterable[str]) -> dict[str, float]:
    """Return metric -> milliseconds from texts such as "ttft:500"; raises ConfigError."""
    parsed: dict[str, float] = {}
    for goal in goals:
        name, _, text = goal.partition(":")
        try:
            limit_ms = float(text)
        except ValueError:
            limit_ms = -1.0
        if name not in ("ttft", "tpot", "e2el") or not limit_ms >= 0:
            raise ConfigError(f"--goodput takes ttft:MS, tpot:MS and e2el:MS, got {goal!r}")
        parsed[name] = limit_ms
    return parsed


def summarise(
    results: Sequence[RequestResult],
    duration_s: float,
    shown: Sequence[str],
    percents: Sequence[float],
    goals_ms: Mapping[str, float],
) -> ServingMetrics:
    """Return the numbers of a run. shown: which latencies; percents: which percentiles of them."""
    done = [result for result in results if result.error is None]
    input_tokens = sum(result.prompt_len for result in done)
    output_tokens = sum(result.output_tokens for result in done)
    seconds = max(duration_s, 1e-9)
    good = sum(all(value_ms(result, name) <= limit for name, limit in goals_ms.items()) for result in done)
    return ServingMetrics(
        completed=len(done),
        failed=len(results) - len(done),
        duration_s=duration_s,
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=len(done) / seconds,
        request_goodput=good / seconds if goals_ms else None,
        output_throughput=output_tokens / seconds,
        total_token_throughput=(input_tokens + output_tokens) / seconds,
        peak_output_throughput=_peak_tokens(done),
        peak_concurrent_requests=peak_concurrency(done),
        latencies=tuple(_summary(name, done, percents) for name in shown),
    )


def value_ms(result: RequestResult, name: str) -> float:
    """Return one latency of one request."""
    return _PER_REQUEST[name](result) * 1e3


_PER_REQUEST: Mapping[str, Callable[[RequestResult], float]] = {
    "ttft": lambda result: result.ttft_s,
    "tpot": lambda result: result.tpot_s,
    "e2el": lambda result: result.latency_s,
}


def _values_ms(name: str, results: Sequence[RequestResult]) -> list[float]:
    if name == "itl":
        return [gap_s * 1e3 for result in results for gap_s in result.itls_s]
    if name == "tpot":  # an answer of one token has none
        results = [result for result in results if result.output_tokens > 1]
    return [value_ms(result, name) for result in results]


def _summary(name: str, results: Sequence[RequestResult], percents: Sequence[float]) -> LatencySummary:
    values = _values_ms(name, results)
    return LatencySummary(
        name,
        _TITLES[name],
        mean(values),
        percentile(values, 50),
        deviation(values),
        tuple((percent, percentile(values, percent)) for percent in percents),
    )


def _peak_tokens(results: Sequence[RequestResult]) -> float:
    """Return the most events with tokens that came within one second of the run."""
    if not results:
        return 0.0
    first_s = min(result.start_s for result in results)
    seconds: Counter[int] = Counter()
    for result in results:
        moment = result.start_s + result.ttft_s - first_s
        seconds[int(moment)] += 1
        for gap in result.itls_s:
            moment += gap
            seconds[int(moment)] += 1
    return float(max(seconds.values()))


def peak_concurrency(results: Sequence[RequestResult]) -> int:
    """Return the most requests that ran at one moment."""
    changes = [(result.start_s, 1) for result in results]
    changes += [(result.start_s + result.latency_s, -1) for result in results]
    peak = now = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak
