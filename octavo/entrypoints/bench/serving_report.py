"""A serving benchmark's result as a table, as JSON with vLLM's names, and as a page with a timeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from octavo.entrypoints.bench.requests import RequestResult
from octavo.entrypoints.bench.serving_metrics import LatencySummary, ServingMetrics
from octavo.entrypoints.bench.statistics import percent_name

_WIDTH = 50


@dataclass(frozen=True)
class ServingRun:
    """What was measured, and how. settings: further keys of the JSON result"""

    metrics: ServingMetrics
    results: Sequence[RequestResult]
    request_rate: float
    max_concurrency: int | None
    settings: Mapping[str, Any]


def table(run: ServingRun) -> str:
    """Return the table, in vLLM's words."""
    metrics = run.metrics
    rows: list[str] = [_centred(" Serving Benchmark Result ", "=")]
    rows += [_row("Successful requests:", metrics.completed), _row("Failed requests:", metrics.failed)]
    if run.max_concurrency is not None:
        rows.append(_row("Maximum request concurrency:", run.max_concurrency))
    if run.request_rate != float("inf"):
        rows.append(_row("Request rate configured (RPS):", run.request_rate))
    rows += [
        _row("Benchmark duration (s):", metrics.duration_s),
        _row("Total input tokens:", metrics.total_input_tokens),
        _row("Total generated tokens:", metrics.total_output_tokens),
        _row("Request throughput (req/s):", metrics.request_throughput),
    ]
    if metrics.request_goodput is not None:
        rows.append(_row("Request goodput (req/s):", metrics.request_goodput))
    rows += [
        _row("Output token throughput (tok/s):", metrics.output_throughput),
        _row("Peak output token throughput (tok/s):", metrics.peak_output_throughput),
        _row("Peak concurrent requests:", metrics.peak_concurrent_requests),
        _row("Total token throughput (tok/s):", metrics.total_token_throughput),
    ]
    for latency in metrics.latencies:
        rows += _latency_rows(latency)
    return "\n".join([*rows, "=" * _WIDTH])


def _latency_rows(latency: LatencySummary) -> list[str]:
    name = latency.name.upper()
    rows = [_centred(latency.title, "-"), _row(f"Mean {name} (ms):", latency.mean_ms)]
    rows.append(_row(f"Median {name} (ms):", latency.median_ms))
    return rows + [
        _row(f"{percent_name(percent).upper()} {name} (ms):", value) for percent, value in latency.percentiles
    ]


def _centred(title: str, filler: str) -> str:
    return f"{title:{filler}^{_WIDTH}}"


def _row(name: str, value: float) -> str:
    shown = f"{value}" if isinstance(value, int) else f"{value:.2f}"
    return f"{name:<40} {shown:<10}".rstrip()


def as_record(run: ServingRun, is_detailed: bool) -> dict[str, Any]:
    """Return the JSON result; is_detailed adds every request's lengths, times and text."""
    metrics = run.metrics
    record: dict[str, Any] = {
        **run.settings,
        "request_rate": run.request_rate if run.request_rate != float("inf") else "inf",
        "max_concurrency": run.max_concurrency,
        "duration": metrics.duration_s,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "max_concurrent_requests": metrics.peak_concurrent_requests,
    }
    for latency in metrics.latencies:
        name = latency.name
        record |= {
            f"mean_{name}_ms": latency.mean_ms,
            f"median_{name}_ms": latency.median_ms,
            f"std_{name}_ms": latency.std_ms,
            **{f"{percent_name(percent)}_{name}_ms": value for percent, value in latency.percentiles},
        }
    if is_detailed:
        record |= _details(run.results)
    return record


def _details(results: Sequence[RequestResult]) -> dict[str, Any]:
    return {
        "input_lens": [result.prompt_len for result in results],
        "output_lens": [result.output_tokens for result in results],
        "start_times": [result.start_s for result in results],
        "ttfts": [result.ttft_s for result in results],
        "itls": [result.itls_s for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error or "" for result in results],
    }


# -- page --------------------------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif; }
:root { --wait: #e0a526; --decode: #2f7fd6; --bad: #d64545; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
pre { font: 13px/1.4 ui-monospace, monospace; overflow-x: auto; }
svg { width: 100%; height: auto; }
text { fill: currentColor; font-size: 11px; }
.wait { fill: var(--wait); } .decode { fill: var(--decode); } .bad { fill: var(--bad); }
.axis { stroke: currentColor; stroke-opacity: .25; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .4em 0 1em; }
"""
_PLOT_WIDTH = 1000
_LEFT = 40
_TICKS = 8


def page(run: ServingRun) -> str:
    """Return an HTML page that needs nothing else: the table, and a bar per request."""
    title = f"Octavo benchmark: {run.settings.get('model_id', '')}"
    settings = json.dumps(dict(run.settings), indent=1, default=str)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{escape(title)}</h1>'
        f"<pre>{escape(table(run))}</pre><h2>Requests</h2>"
        '<p><span class="key" style="background: var(--wait)"></span>to the first token'
        '<span class="key" style="background: var(--decode)"></span>generating'
        '<span class="key" style="background: var(--bad)"></span>failed</p>'
        f"{_timeline(run.results)}<details><summary>Settings</summary><pre>{escape(settings)}</pre></details></html>"
    )


def _timeline(results: Sequence[RequestResult]) -> str:
    ordered = sorted(results, key=lambda result: result.start_s)
    if not ordered:
        return "<p>No request was sent.</p>"
    first_s = ordered[0].start_s
    span_s = max(max(result.start_s + result.latency_s for result in ordered) - first_s, 1e-3)
    scale = (_PLOT_WIDTH - _LEFT) / span_s
    row_height = 14 if len(ordered) <= 60 else max(2, 900 // len(ordered))
    height = row_height * len(ordered) + 24
    bars = "".join(_bars(result, index, first_s, scale, row_height) for index, result in enumerate(ordered))
    ticks = "".join(
        f'<line class="axis" x1="{_x(i * span_s / _TICKS, scale)}" x2="{_x(i * span_s / _TICKS, scale)}" y1="0" '
        f'y2="{height - 18}"/><text x="{_x(i * span_s / _TICKS, scale)}" y="{height - 4}" text-anchor="middle">'
        f"{i * span_s / _TICKS:.2f} s</text>"
        for i in range(_TICKS)
    )
    return f'<svg viewBox="0 0 {_PLOT_WIDTH} {height}" role="img" aria-label="Timeline of requests">{ticks}{bars}</svg>'


def _bars(result: RequestResult, index: int, first_s: float, scale: float, row_height: int) -> str:
    start = result.start_s - first_s
    y, height = index * row_height, max(row_height - 2, 1)
    if result.error is not None:
        return (
            f'<rect class="bad" x="{_x(start, scale)}" y="{y}" width="6" height="{height}">'
            f"<title>{escape(result.error)}</title></rect>"
        )
    hint = (
        f"<title>request {index}: {result.prompt_len} tokens in, {result.output_tokens} out, first after "
        f"{result.ttft_s * 1e3:.0f} ms, all after {result.latency_s * 1e3:.0f} ms</title>"
    )
    decode_s = result.latency_s - result.ttft_s
    return (
        f'<rect class="wait" x="{_x(start, scale)}" y="{y}" width="{result.ttft_s * scale:.1f}" height="{height}">'
        f'{hint}</rect><rect class="decode" x="{_x(start + result.ttft_s, scale)}" y="{y}" '
        f'width="{decode_s * scale:.1f}" height="{height}">{hint}</rect>'
    )


def _x(seconds: float, scale: float) -> str:
    return f"{_LEFT + seconds * scale:.1f}"
