"""The bounds that a spec must keep before the core sees it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast_wire.messages import HealthMode, HealthPolicy, MasterSpec, Tier, TierInterval
from holdfast_wire.tiers import TIERS, word

_SECONDS = (
    "join_window_seconds",
    "scale_down_grace_seconds",
    "below_min_timeout_seconds",
    "active_deadline_seconds",
    "progress_seconds",
)
_MOST_STEPS = 2**31


def spec_problem(spec: MasterSpec) -> str:
    """Return the problems of `spec`, naming field, value and remedy; empty: none."""
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
    nodes = spec.nodes_per_replica
    if nodes and (low % nodes or high % nodes or (spec.node_unit > 1 and spec.node_unit % nodes)):
        return (
            f"nodes_per_replica is {nodes}; min_replicas ({low}) and max_replicas ({high}) must be "
            f"multiples of it, and node_unit ({spec.node_unit}) too, or 1"
        )
    for name in _SECONDS:
        seconds = getattr(spec, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            return f"{name} is {seconds}; it must be 0 or more seconds"
    problem = _interval_problem(spec.checkpoint.intervals) if spec.checkpoint is not None else ""
    return problem or _straggler_problem(spec.health)


def _straggler_problem(health: HealthPolicy | None) -> str:
    """Return the problems of the votes; in a mode without verdicts they do not matter."""
    policy = health.straggler if health is not None else None
    if policy is None or policy.mode in {HealthMode.UNSPECIFIED, HealthMode.DISABLED}:
        return ""
    where = "health.straggler"
    if policy.window_steps < 1:
        return f"{where}.window_steps is {policy.window_steps}; it must be at least 1"
    if not 1 <= policy.votes <= policy.votes_out_of:
        return f"{where}.votes is {policy.votes}; it must be 1 to {policy.votes_out_of}"
    return ""


def _interval_problem(intervals: Sequence[TierInterval]) -> str:
    seen = set[Tier]()
    for at, one in enumerate(intervals):
        where = f"checkpoint.intervals[{at}]"
        if one.tier is Tier.UNSPECIFIED:
            return f"{where} has no tier; it must be {' or '.join(map(word, TIERS))}"
        if one.tier in seen:
            return f"{where} names {word(one.tier)} again; each tier may be named once"
        if not 0 <= one.every < _MOST_STEPS:
            name, most = word(one.tier), _MOST_STEPS - 1
            return f"{where}, {name}, is every {one.every}; it must be 0 (computed) to {most}"
        seen.add(one.tier)
    return ""
