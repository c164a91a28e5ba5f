"""Prometheus' text format: names, escapes, kinds."""

from __future__ import annotations

from octavo.metrics.engine_metrics import Counter, Gauge, Histogram
from octavo.metrics.prometheus import render


def test_each_kind_is_written_as_prometheus_reads_it():
    text = render(
        [
            Counter("vllm:prompt_tokens", {"model_name": "a"}, 3),
            Counter("vllm:prompt_tokens", {"model_name": "b"}, 4),
            Gauge("other", {}, 0.25),
            Histogram("vllm:waits", {"model_name": "a"}, 2, 1.5, {"1.0": 1, "+Inf": 2}),
        ],
        "octavo:",
    )
    assert text.splitlines() == [
        "# HELP octavo:prompt_tokens_total Prompt tokens read",
        "# TYPE octavo:prompt_tokens_total counter",
        'octavo:prompt_tokens_total{model_name="a"} 3',
        'octavo:prompt_tokens_total{model_name="b"} 4',
        "# HELP other other",
        "# TYPE other gauge",
        "other 0.25",
        "# HELP octavo:waits waits",
        "# TYPE octavo:waits histogram",
        'octavo:waits_bucket{model_name="a",le="1.0"} 1',
        'octavo:waits_bucket{model_name="a",le="+Inf"} 2',
        'octavo:waits_count{model_name="a"} 2',
        'octavo:waits_sum{model_name="a"} 1.5',
    ]


def test_label_values_cannot_break_out():
    (line,) = (
        line for line in render([Gauge("g", {"m": 'a"}\n\\'}, 1.0)], "x:").splitlines() if not line.startswith("#")
    )
    assert line == r'g{m="a\"}\n\\"} 1.0'
