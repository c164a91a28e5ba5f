"""Means, percentiles and deviations, as the benchmarks report them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of the population, 0 of nothing."""
    centre = mean(values)
    return math.sqrt(mean([(value - centre) ** 2 for value in values]))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which so many percent lie, linear between neighbours (NumPy's default); 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def percent_name(percent: float) -> str:
    """Return "p99" for 99 and "p99.9" for 99.9."""
    return f"p{percent:g}"
