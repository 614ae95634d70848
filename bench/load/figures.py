"""Arithmetic on measurements: percentiles, growth. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values, so no percentile")
    ordered = sorted(values)
    place = math.ceil(percent / 100 * len(ordered))
    return ordered[min(len(ordered), max(1, place)) - 1]


def median(values: Sequence[float]) -> float:
    """Return the lower of the two values in the middle."""
    return percentile(values, 50)


def spread(values: Sequence[float], name: str, scale: float = 1.0) -> dict[str, float]:
    """Return median, 99th percentile and greatest of ``values`` times ``scale``, by name."""
    if not values:
        return {}
    return {
        f"{name}_p50": scale * percentile(values, 50),
        f"{name}_p99": scale * percentile(values, 99),
        f"{name}_max": scale * max(values),
    }


def growth(costs: Mapping[int, float]) -> float | None:
    """Return k of the power law cost = c · (N log N)^k that fits best; None below three sizes.

    At most 1: the cost grows no faster than N log N. Fitted as a line through the logarithms, so
    that a constant part, which small sizes mostly show, makes k smaller and never larger.
    """
    if len(costs) < 3:
        return None
    sizes = [math.log(n * math.log(n)) for n in costs]
    return statistics.linear_regression(sizes, list(map(math.log, costs.values()))).slope
