"""Arrivals and numbers: what a rate promises, and percentiles that agree with NumPy."""

from __future__ import annotations

import asyncio
import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.bench.datasets import BenchPrompt
from octavo.entrypoints.bench.load import LoadOptions, arrival_times, run_load
from octavo.entrypoints.bench.requests import RequestResult
from octavo.entrypoints.bench.serving_metrics import parse_goodput, summarise
from octavo.entrypoints.bench.serving_report import ServingRun, page, table
from octavo.entrypoints.bench.statistics import deviation, percentile
from octavo.errors import ConfigError

INF = float("inf")
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 100))
def test_percentiles_and_deviations_are_numpys(values: list[float], percent: float):
    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)), rel=1e-9, abs=1e-6)
    assert deviation(values) == pytest.approx(float(numpy.std(values)), rel=1e-6, abs=1e-6)


def test_all_at_once_without_a_rate():
    assert arrival_times(4, LoadOptions(INF, 1, None, 0)) == [0.0] * 4


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 50.0])
def test_arrivals_keep_the_promised_rate_and_burstiness_shapes_the_gaps(burstiness: float):
    times = arrival_times(400, LoadOptions(8.0, burstiness, None, 1))
    assert times == sorted(times) and times[-1] == pytest.approx(400 / 8)
    gaps = numpy.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.25)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_gets_denser(strategy: str):
    times = arrival_times(200, LoadOptions(INF, 1e6, None, 0, strategy, 1.0, 20.0))
    gaps = numpy.diff(times)
    assert gaps[0] == pytest.approx(1.0, rel=0.1) and gaps[-1] == pytest.approx(1 / 20, rel=0.1)


@pytest.mark.parametrize(
    "options", [(0, 1, None), (-1, 1, None), (float("nan"), 1, None), (1, 0, None), (1, 1, 0), (1, 1, None, "linear")]
)
def test_impossible_loads_are_refused(options: tuple):
    rate, burstiness, concurrency, *ramp = options
    with pytest.raises(ConfigError):
        LoadOptions(rate, burstiness, concurrency, 0, *ramp)


def test_no_more_requests_run_than_allowed_and_results_keep_the_order():
    running = peak = 0

    async def send(prompt: BenchPrompt) -> RequestResult:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001)
        running -= 1
        return RequestResult(prompt.prompt_len)

    prompts = [BenchPrompt("x", index, 1) for index in range(20)]
    done: list[None] = []
    results = asyncio.run(run_load(prompts, LoadOptions(INF, 1, 3, 0), send, lambda: done.append(None)))
    assert peak == 3 and len(done) == 20
    assert [result.prompt_len for result in results] == list(range(20))


def three_results() -> list[RequestResult]:
    """Two answers of 3 tokens, overlapping, and one that failed."""
    return [
        RequestResult(10, 100.0, 0.5, 0.1, [0.2, 0.2], 3, "abc"),
        RequestResult(10, 100.2, 1.5, 1.1, [0.2, 0.2], 3, "abc"),
        RequestResult(10, 100.3, error="status 500"),
    ]


def test_the_numbers_of_a_run():
    metrics = summarise(three_results(), 2.0, ["ttft", "tpot", "itl", "e2el"], [50, 99], {"ttft": 500.0})
    assert (metrics.completed, metrics.failed, metrics.total_output_tokens) == (2, 1, 6)
    assert metrics.output_throughput == 3.0 and metrics.total_token_throughput == 13.0
    assert metrics.request_goodput == 0.5  # one of them in time, in two seconds
    assert metrics.peak_concurrent_requests == 2
    ttft, tpot, itl, e2el = metrics.latencies
    assert ttft.mean_ms == pytest.approx(600) and tpot.mean_ms == pytest.approx(200)
    assert itl.median_ms == pytest.approx(200) and e2el.percentiles[1][1] == pytest.approx(1490)


def test_table_and_page_show_what_was_measured():
    metrics = summarise(three_results(), 2.0, ["ttft"], [99.9], {})
    run = ServingRun(metrics, three_results(), INF, 4, {"model_id": "<m>"})
    lines = table(run).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============" and lines[-1] == "=" * 50
    assert "Maximum request concurrency:             4" in lines and "P99.9 TTFT (ms):" in table(run)
    assert "goodput" not in table(run)
    text = page(run)
    assert text.count("<rect") == 5 and "&lt;m&gt;" in text and "<m>" not in text
    assert "http://" not in text and "<script" not in text  # nothing is loaded, nothing runs


@pytest.mark.parametrize("goal", ["ttft", "itl:5", "ttft:x", "ttft:-1"])
def test_goals_that_mean_nothing_are_refused(goal: str):
    with pytest.raises(ConfigError, match="goodput"):
        parse_goodput([goal])
