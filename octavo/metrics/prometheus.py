"""Metrics in Prometheus' text exposition format, version 0.0.4.

Written here and not by the prometheus_client package: the counting is done already (`engine_metrics`), so what is left
are these lines, and the package would add a tenth of a second to every start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.metrics.engine_metrics import HELP, PREFIX, Counter, Gauge, Histogram, Metric, Vector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(metrics: Iterable[Metric], prefix: str) -> str:
    """Return the text of metrics; those of the same name must stand together. prefix replaces the engine's own."""
    lines: list[str] = []
    described = ""
    for metric in metrics:
        bare = metric.name.removeprefix(PREFIX)
        name = prefix + bare if bare != metric.name else bare
        if isinstance(metric, (Counter, Vector)):
            name += "_total"
        if name != described:
            described = name
            lines.append(f"# HELP {name} {HELP.get(bare, bare.replace('_', ' '))}")
            lines.append(f"# TYPE {name} {_TYPES[type(metric)]}")
        lines.extend(_samples(name, metric))
    return "\n".join(lines) + "\n"


def _samples(name: str, metric: Metric) -> Iterable[str]:
    labels = metric.labels
    if isinstance(metric, (Counter, Gauge)):
        yield f"{name}{_labels(labels)} {_number(metric.value)}"
    elif isinstance(metric, Vector):
        for position, value in enumerate(metric.values):
            yield f"{name}{_labels({**labels, 'position': str(position)})} {value}"
    elif isinstance(metric, Histogram):
        for bound, count in metric.buckets.items():
            yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
        yield f"{name}_count{_labels(labels)} {metric.count}"
        yield f"{name}_sum{_labels(labels)} {_number(metric.sum)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


_TYPES = {Counter: "counter", Vector: "counter", Gauge: "gauge", Histogram: "histogram"}
