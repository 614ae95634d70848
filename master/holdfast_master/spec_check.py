"""The bounds that a spec must keep before the core sees it. Pure."""

from __future__ import annotations

import math

from holdfast_wire.messages import MasterSpec

_SECONDS = (
    "join_window_seconds",
    "scale_down_grace_seconds",
    "below_min_timeout_seconds",
    "active_deadline_seconds",
)
_MOST_STEPS = 2**31


def spec_problem(spec: MasterSpec) -> str:
    """Return what is wrong with `spec`, naming field, value and remedy; empty: nothing."""
    low, high = spec.min_replicas, spec.max_replicas
    if not 1 <= low <= high:
        return (
            f"min_replicas is {low} and max_replicas {high}; "
            "they must be 1 or more, the minimum not above the maximum"
        )
    if not 0 <= spec.replicas <= high:
        return f"replicas is {spec.replicas}; it must be 0 to {high} (max_replicas)"
    if spec.node_unit < 1:
        return f"node_unit is {spec.node_unit}; it must be at least 1"
    if low % spec.node_unit or high % spec.node_unit:
        return (
            f"node_unit is {spec.node_unit}; min_replicas ({low}) and max_replicas ({high}) "
            "must be multiples of it"
        )
    for name in _SECONDS:
        seconds = getattr(spec, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            return f"{name} is {seconds}; it must be 0 or more seconds"
    for name in ("memory_every", "storage_every"):
        if not 0 <= getattr(spec, name) < _MOST_STEPS:
            return f"{name} is {getattr(spec, name)}; it must be 0 (computed) to {_MOST_STEPS - 1}"
    return ""
