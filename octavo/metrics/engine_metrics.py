"""Counts what an engine does, under vLLM's metric names: dashboards and scripts written for vLLM keep working."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest

import msgspec

from octavo.types.request import FinishReason
from octavo.types.stats import RequestMetrics, SchedulerStats, SpeculationStats


@dataclass(frozen=True)
class Metric:
    """A named value at one moment."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Counter(Metric):
    """A count since the engine's start."""

    value: int


@dataclass(frozen=True)
class Gauge(Metric):
    """A value that goes up and down."""

    value: float


@dataclass(frozen=True)
class Histogram(Metric):
    """A distribution. buckets: upper bound ("+Inf" the last) -> observations at or below it."""

    count: int
    sum: float
    buckets: Mapping[str, int]


@dataclass(slots=True)
class StepTally:
    """New tokens of one step, added up before they are recorded.

    num_gaps_since: when a request got its last token before -> how many requests
    """

    num_tokens: int = 0
    num_gaps_since: dict[float, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector(Metric):
    """Counts since the engine's start, by position."""

    values: list[int]


class Distribution(msgspec.Struct, array_like=True):
    """Observations by bucket, not added up, and their sum."""

    counts: list[int]
    sum: float = 0.0


class EngineCounts(msgspec.Struct, array_like=True):
    """What was counted of one engine; counts of several observers add up. scheduler: its state after the last step"""

    scheduler: SchedulerStats
    totals: dict[str, int]
    finished: dict[str, int]
    distributions: dict[str, Distribution]
    accepted_per_position: list[int] = []

    @classmethod
    def zero(cls) -> EngineCounts:
        """Return the counts before anything was counted."""
        return cls(
            SchedulerStats(),
            dict.fromkeys(_COUNTERS, 0),
            {str(reason): 0 for reason in FinishReason},
            {name: Distribution([0] * (len(bounds) + 1)) for name, bounds in _HISTOGRAMS.items()},
        )

    def add(self, other: EngineCounts) -> None:
        """Add what another observer has counted of the same engine. Only one of them is told of the scheduler."""
        own, theirs = self.scheduler, other.scheduler
        own.num_running += theirs.num_running
        own.num_waiting += theirs.num_waiting
        own.kv_cache_usage += theirs.kv_cache_usage
        own.running_adapters += theirs.running_adapters
        own.waiting_adapters += theirs.waiting_adapters
        for name, count in other.totals.items():
            self.totals[name] += count
        for reason, count in other.finished.items():
            self.finished[reason] += count
        for name, distribution in other.distributions.items():
            mine = self.distributions[name]
            mine.counts = list(map(sum, zip(mine.counts, distribution.counts, strict=True)))
            mine.sum += distribution.sum
        self.accepted_per_position = _sums(self.accepted_per_position, other.accepted_per_position)


class EngineMetrics:
    """Accumulates one engine's metrics; every `record_` call is a no-op when `enabled` is False."""

    def __init__(self, model_name: str, enabled: bool = True, rank: int = 0) -> None:
        """rank: of the engine among its replicas"""
        self.enabled = enabled
        self.labels = {"model_name": model_name, "engine": str(rank)}
        self.counts = EngineCounts.zero()

    def record_scheduler(self, stats: SchedulerStats) -> None:
        """Take the scheduler's state after a step; prefix cache numbers are since the last report."""
        if not self.enabled:
            return
        totals = self.counts.totals
        self.counts.scheduler = stats
        totals["prefix_cache_queries"] += stats.prefix_cache.queries
        totals["prefix_cache_hits"] += stats.prefix_cache.hits
        totals["num_preemptions"] = stats.num_preemptions
        if stats.speculation is not None:
            self._record_speculation(stats.speculation)
        if stats.num_step_tokens:
            self._observe("iteration_tokens_total", stats.num_step_tokens)

    def _record_speculation(self, stats: SpeculationStats) -> None:
        counts, new = self.counts, stats.num_accepted_per_position
        counts.totals["spec_decode_num_drafts"] += stats.num_drafts
        counts.totals["spec_decode_num_draft_tokens"] += stats.num_draft_tokens
        counts.totals["spec_decode_num_accepted_tokens"] += sum(new)
        counts.accepted_per_position = _sums(counts.accepted_per_position, new)

    def record_params(self, n: int, max_tokens: int | None) -> None:
        """Take the parameters of a request that ends: its sequences, and how long each may get."""
        if not self.enabled:
            return
        self._observe("request_params_n", n)
        if max_tokens is not None:
            self._observe("request_params_max_tokens", max_tokens)

    def record_step(self, tally: StepTally, timestamp: float) -> None:
        """Count a step's new tokens, which came at `timestamp`."""
        if not self.enabled:
            return
        self.counts.totals["generation_tokens"] += tally.num_tokens
        for previous_token_ts, count in tally.num_gaps_since.items():
            self._observe("inter_token_latency_seconds", timestamp - previous_token_ts, count)

    def record_prompt(self, request: RequestMetrics, num_prompt_tokens: int, num_cached_tokens: int = 0) -> None:
        """Count a request's prompt when its first token, or its pooled result, is there.

        num_cached_tokens: of the prompt's tokens, those that came from the prefix cache
        """
        if not self.enabled:
            return
        self.counts.totals["prompt_tokens"] += num_prompt_tokens
        self.counts.totals["prompt_tokens_cached"] += num_cached_tokens
        self._observe("request_prefill_kv_computed_tokens", num_prompt_tokens - num_cached_tokens)
        if request.first_token_ts:
            self._observe("time_to_first_token_seconds", request.first_token_latency)

    def record_finished(self, request: RequestMetrics, reason: FinishReason, num_prompt_tokens: int) -> None:
        """Count a finished sequence."""
        if not self.enabled:
            return
        self.counts.finished[str(reason)] += 1
        self._observe("e2e_request_latency_seconds", time.time() - request.arrival_time)
        self._observe("request_prompt_tokens", num_prompt_tokens)
        self._observe("request_generation_tokens", request.num_generation_tokens)
        self._observe("request_max_num_generation_tokens", request.num_generation_tokens)
        self._observe("request_num_preemptions", request.num_preemptions)
        if request.scheduled_ts:
            self._observe("request_queue_time_seconds", request.queued_time_s)
        if request.first_token_ts:
            self._observe("request_prefill_time_seconds", request.prefill_time_s)
            self._observe("request_decode_time_seconds", request.decode_time_s)
            self._observe("request_inference_time_seconds", request.inference_time_s)
        if request.num_generation_tokens > 1:
            seconds = request.decode_time_s / (request.num_generation_tokens - 1)
            self._observe("request_time_per_output_token_seconds", seconds)

    @property
    def scheduler(self) -> SchedulerStats:
        """The scheduler's state after the last step."""
        return self.counts.scheduler

    def totals(self) -> dict[str, int]:
        """Return the counters as they are now, by name."""
        return dict(self.counts.totals)

    def snapshot(self) -> list[Metric]:
        """Return all metrics as they are now."""
        labels, counts, scheduler = self.labels, self.counts, self.counts.scheduler
        gauges = {
            "num_requests_running": scheduler.num_running,
            "num_requests_waiting": scheduler.num_waiting,
            "kv_cache_usage_perc": scheduler.kv_cache_usage,
        }
        metrics: list[Metric] = [Gauge(PREFIX + name, labels, float(value)) for name, value in gauges.items()]
        for reason, waiting in (("capacity", scheduler.num_waiting), ("deferred", 0)):
            by_reason = {**labels, "reason": reason}
            metrics.append(Gauge(PREFIX + "num_requests_waiting_by_reason", by_reason, float(waiting)))
        metrics += [Counter(PREFIX + name, labels, total) for name, total in counts.totals.items()]
        name = PREFIX + "spec_decode_num_accepted_tokens_per_pos"
        metrics.append(Vector(name, labels, counts.accepted_per_position))
        for reason, count in counts.finished.items():
            metrics.append(Counter(PREFIX + "request_success", {**labels, "finished_reason": reason}, count))
        for name, distribution in counts.distributions.items():
            metrics.append(_histogram(name, labels, distribution))
        return metrics

    def _observe(self, name: str, value: float, count: int = 1) -> None:
        distribution = self.counts.distributions[name]
        distribution.counts[bisect_left(_HISTOGRAMS[name], value)] += count
        distribution.sum += value * count


def _histogram(name: str, labels: Mapping[str, str], distribution: Distribution) -> Histogram:
    bounds = [*map(str, _HISTOGRAMS[name]), "+Inf"]
    buckets = dict(zip(bounds, accumulate(distribution.counts), strict=True))
    return Histogram(PREFIX + name, labels, buckets["+Inf"], distribution.sum, buckets)


def _sums(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return list(map(sum, zip_longest(first, second, fillvalue=0)))


PREFIX = "vllm:"
HELP: Mapping[str, str] = {
    "num_requests_running": "Requests in the running batch",
    "num_requests_waiting": "Requests that wait for a place in the batch",
    "kv_cache_usage_perc": "Share of KV cache blocks in use, 0 to 1",
    "prompt_tokens": "Prompt tokens read",
    "generation_tokens": "Tokens generated",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "spec_decode_num_drafts": "Times that tokens were guessed ahead for a request",
    "spec_decode_num_draft_tokens": "Tokens guessed and computed",
    "spec_decode_num_accepted_tokens": "Guessed tokens that were right",
    "spec_decode_num_accepted_tokens_per_pos": "Guessed tokens that were right, by how far ahead they were guessed",
    "num_requests_waiting_by_reason": "Requests that wait, by what they wait for",
    "prompt_tokens_cached": "Prompt tokens taken from the prefix cache",
    "iteration_tokens_total": "Tokens computed in a step",
    "request_params_n": "Sequences asked for by a request",
    "request_params_max_tokens": "Longest sequence asked for by a request, in tokens",
    "request_max_num_generation_tokens": "Tokens generated by the longest sequence of a finished request",
    "request_num_preemptions": "Times that a finished request gave its KV cache blocks back",
    "request_prefill_kv_computed_tokens": "Prompt tokens computed for a request, without cached ones",
    "request_time_per_output_token_seconds": "Between two tokens of a finished request, on average",
    "num_preemptions": "Times that a running request gave its KV cache blocks back",
    "request_success": "Finished requests, by reason",
    "time_to_first_token_seconds": "From a request's arrival to its first token",
    "inter_token_latency_seconds": "Between two outputs of a request",
    "e2e_request_latency_seconds": "From a request's arrival to its end",
    "request_queue_time_seconds": "From a request's queueing to its first step",
    "request_prefill_time_seconds": "From a request's first step to its first token",
    "request_decode_time_seconds": "From a request's first token to its last",
    "request_inference_time_seconds": "From a request's first step to its last token",
    "request_prompt_tokens": "Prompt tokens of a finished request",
    "request_generation_tokens": "Tokens generated by a finished request",
    "cache_config_info": "How the KV cache is set up; the value is always 1",
    "admission_rejections": "Requests refused because too much was waiting, by limit",
    "lora_requests_info": "LoRA adapters of running and waiting requests, and how many may run; the value is the time",
    "engine_up": "1 while an engine replica takes requests, 0 while it is replaced",
    "server_load": "Generation requests in work",
    "http_requests": "HTTP requests answered; status 0: the client went away first",
}
_COUNTERS = (
    *("prompt_tokens", "prompt_tokens_cached", "generation_tokens"),
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"),
    *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
)
_REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)  # fmt: skip
_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_TOKEN_COUNTS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0,
)  # fmt: skip
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_SMALL_COUNTS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
_HISTOGRAMS: Mapping[str, Sequence[float]] = {
    "time_to_first_token_seconds": _TOKEN_SECONDS,
    "inter_token_latency_seconds": _TOKEN_SECONDS,
    "e2e_request_latency_seconds": _REQUEST_SECONDS,
    "request_queue_time_seconds": _REQUEST_SECONDS,
    "request_prefill_time_seconds": _REQUEST_SECONDS,
    "request_decode_time_seconds": _REQUEST_SECONDS,
    "request_inference_time_seconds": _REQUEST_SECONDS,
    "request_prompt_tokens": _TOKEN_COUNTS,
    "request_generation_tokens": _TOKEN_COUNTS,
    "request_max_num_generation_tokens": _TOKEN_COUNTS,
    "request_params_max_tokens": _TOKEN_COUNTS,
    "request_prefill_kv_computed_tokens": _TOKEN_COUNTS,
    "request_time_per_output_token_seconds": _TOKEN_SECONDS,
    "request_params_n": _SMALL_COUNTS,
    "request_num_preemptions": _SMALL_COUNTS,
    "iteration_tokens_total": _STEP_TOKENS,
}
