"""Counters, gauges and histograms say what was recorded, under vLLM's names."""

from __future__ import annotations

import time

import pytest

from octavo.metrics.engine_metrics import Counter, EngineMetrics, Gauge, Histogram, StepTally, Vector
from octavo.metrics.prometheus import render
from octavo.types.request import FinishReason
from octavo.types.stats import PrefixCacheStats, RequestMetrics, SchedulerStats, SpeculationStats


def by_name(metrics: EngineMetrics) -> dict[str, object]:
    return {
        metric.name: metric for metric in metrics.snapshot() if not {"finished_reason", "reason"} & metric.labels.keys()
    }


def finished_request() -> RequestMetrics:
    return RequestMetrics(
        arrival_time=time.time() - 10,
        queued_ts=100.0,
        scheduled_ts=100.4,
        first_token_ts=101.4,
        last_token_ts=105.4,
        first_token_latency=1.4,
        num_generation_tokens=5,
    )


def test_gauges_show_the_last_state_and_cache_counts_add_up():
    metrics = EngineMetrics("m")
    metrics.record_scheduler(SchedulerStats(3, 2, 0.5, 1, PrefixCacheStats(100, 64)))
    metrics.record_scheduler(SchedulerStats(1, 0, 0.25, 4, PrefixCacheStats(10, 0)))
    shown = by_name(metrics)
    labels = {"model_name": "m", "engine": "0"}
    assert shown["vllm:num_requests_running"] == Gauge("vllm:num_requests_running", labels, 1.0)
    assert shown["vllm:kv_cache_usage_perc"].value == 0.25
    assert shown["vllm:num_preemptions"] == Counter("vllm:num_preemptions", labels, 4)
    assert (shown["vllm:prefix_cache_queries"].value, shown["vllm:prefix_cache_hits"].value) == (110, 64)


def test_a_histogram_counts_what_is_at_or_below_each_bound():
    metrics = EngineMetrics("m")
    for num_prompt_tokens in (1, 2, 3, 10**6):
        metrics.record_finished(finished_request(), FinishReason.STOP, num_prompt_tokens)
    histogram = by_name(metrics)["vllm:request_prompt_tokens"]
    assert isinstance(histogram, Histogram)
    assert (histogram.count, histogram.sum) == (4, 10**6 + 6)
    assert [histogram.buckets[bound] for bound in ("1.0", "2.0", "5.0", "50000.0", "+Inf")] == [1, 2, 3, 3, 4]


def test_phases_of_a_request_are_told_apart():
    metrics = EngineMetrics("m")
    request = finished_request()
    metrics.record_prompt(request, 7)
    metrics.record_step(StepTally(1), 104.4)
    metrics.record_step(StepTally(4, {104.4: 1}), 105.4)
    metrics.record_finished(request, FinishReason.LENGTH, 7)
    shown = by_name(metrics)
    sums = {name.removeprefix("vllm:"): m.sum for name, m in shown.items() if isinstance(m, Histogram)}
    assert sums["time_to_first_token_seconds"] == pytest.approx(1.4)
    assert sums["inter_token_latency_seconds"] == pytest.approx(1.0)
    assert sums["request_queue_time_seconds"] == pytest.approx(0.4)
    assert sums["request_prefill_time_seconds"] == pytest.approx(1.0)
    assert sums["request_decode_time_seconds"] == pytest.approx(4.0)
    assert sums["request_inference_time_seconds"] == pytest.approx(5.0)
    assert sums["e2e_request_latency_seconds"] == pytest.approx(10.0, abs=5)
    assert (shown["vllm:prompt_tokens"].value, shown["vllm:generation_tokens"].value) == (7, 5)


def test_ends_are_counted_by_reason():
    metrics = EngineMetrics("m")
    for reason in (FinishReason.ABORT, FinishReason.ABORT, FinishReason.ERROR):
        metrics.record_finished(RequestMetrics(arrival_time=time.time()), reason, 3)
    ends = {m.labels["finished_reason"]: m.value for m in metrics.snapshot() if "finished_reason" in m.labels}
    assert ends == {"stop": 0, "length": 0, "abort": 2, "error": 1, "repetition": 0}
    assert by_name(metrics)["vllm:request_queue_time_seconds"].count == 0  # never scheduled


def test_nothing_is_counted_when_disabled():
    metrics = EngineMetrics("m", enabled=False)
    metrics.record_scheduler(SchedulerStats(num_running=3, speculation=SpeculationStats(1, 2, [1])))
    metrics.record_prompt(finished_request(), 7)
    metrics.record_step(StepTally(1), 1.0)
    metrics.record_finished(finished_request(), FinishReason.STOP, 7)
    by_position = [m for m in metrics.snapshot() if isinstance(m, Vector)]
    assert [m.values for m in by_position] == [[]]
    assert {getattr(m, "value", getattr(m, "count", None)) for m in metrics.snapshot() if m not in by_position} == {0}


def test_guesses_are_summed_by_position():
    metrics = EngineMetrics("m")
    stats = SpeculationStats()
    stats.record(3, 2)
    stats.record(1, 0)
    for speculation in (stats, None, SpeculationStats(1, 4, [1, 1, 1, 1])):
        metrics.record_scheduler(SchedulerStats(speculation=speculation))
    totals = metrics.totals()
    assert totals["spec_decode_num_drafts"] == 3
    assert totals["spec_decode_num_draft_tokens"] == 8
    assert totals["spec_decode_num_accepted_tokens"] == 6
    text = render(metrics.snapshot(), "vllm:")
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",engine="0",position="1"} 2' in text
    assert 'position="3"} 1' in text and 'position="4"' not in text


def test_what_requests_ask_for_and_steps_compute_is_distributed():
    metrics = EngineMetrics("m")
    metrics.record_params(n=3, max_tokens=40)
    metrics.record_prompt(finished_request(), 7, num_cached_tokens=4)
    metrics.record_step(StepTally(3, {104.0: 2}), 105.0)
    metrics.record_scheduler(SchedulerStats(num_running=2, num_step_tokens=6))
    metrics.record_scheduler(SchedulerStats(num_running=2))  # a step without results
    metrics.record_finished(finished_request(), FinishReason.STOP, 7)
    shown = by_name(metrics)
    assert (shown["vllm:request_params_n"].sum, shown["vllm:request_params_max_tokens"].sum) == (3, 40)
    assert (shown["vllm:iteration_tokens_total"].count, shown["vllm:iteration_tokens_total"].sum) == (1, 6)
    gaps = shown["vllm:inter_token_latency_seconds"]
    assert (gaps.count, gaps.sum) == (2, 2.0)
    assert shown["vllm:prompt_tokens_cached"].value == 4
    assert shown["vllm:request_prefill_kv_computed_tokens"].sum == 3
    assert shown["vllm:request_time_per_output_token_seconds"].sum == 1.0  # 4 s for the 4 tokens after the first
