"""The periodic line: rates since the last one, and nothing to say when idle."""

from __future__ import annotations

from octavo.metrics.engine_metrics import EngineMetrics, StepTally
from octavo.metrics.stats_line import StatsLine
from octavo.types.stats import PrefixCacheStats, RequestMetrics, SchedulerStats


def test_rates_are_since_the_last_line_and_cached_tokens_do_not_count():
    metrics = EngineMetrics("m")
    line = StatsLine(metrics, 100.0)
    request = RequestMetrics(first_token_ts=1.0, last_token_ts=1.0, num_generation_tokens=1)
    metrics.record_prompt(request, 200)
    metrics.record_step(StepTally(num_tokens=30), 1.0)
    metrics.record_scheduler(SchedulerStats(2, 1, 0.5, 3, PrefixCacheStats(200, 50)))
    text, is_busy = line.next(metrics, 110.0)
    assert is_busy
    for part in ("prompt 15.0 tokens/s", "generation 3.0 tokens/s", "2 running, 1 waiting", "50.0% used", "hits 25.0%"):
        assert part in text
    assert "3 preemptions" in text
    metrics.record_scheduler(SchedulerStats(0, 0, 0.0, 3))
    text, is_busy = line.next(metrics, 120.0)
    assert not is_busy and "generation 0.0 tokens/s" in text and "preemptions" not in text
