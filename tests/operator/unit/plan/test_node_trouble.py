"""Conditions and cordons of Kubernetes nodes: which speak against them, and how much."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.plan.node_strikes import from_data, merge, to_data
from holdfast_operator.plan.node_trouble import (
    CORDON_REASON,
    CORDONED_BY,
    conditions_of,
    cordon_of,
    is_cordoned,
)
from holdfast_wire.strikes import NODE_SOURCE, WEIGHTS, StrikeCause

NOW = 1_767_225_660.0
BEGAN = "2026-01-01T00:00:00Z"


def node(*conditions: tuple[str, str], cordoned: bool = False, **metadata: Any) -> dict[str, Any]:
    """A node with some conditions."""
    found = [
        {"type": kind, "status": status, "reason": "Why", "lastTransitionTime": BEGAN}
        for kind, status in conditions
    ]
    return {
        "metadata": {"name": "gpu-7", **metadata},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": found},
    }


@pytest.mark.parametrize(
    ("kind", "status", "bad"),
    [
        ("KernelDeadlock", "True", True),
        ("ReadonlyFilesystem", "False", False),
        ("XIDErrors", "True", True),
        ("GpuNvlinkWatch", "True", True),
        ("GpuXidError", "True", True),
        ("GpuMemWatch", "False", False),
        ("SysLogsGPUFallenOff", "True", True),
        ("AcceleratedHardwareReady", "False", True),
        ("AcceleratedHardwareReady", "True", False),
        ("AcceleratedHardwareReady", "Unknown", False),
        # The node's load, or its network: no hardware trouble.
        ("Ready", "False", False),
        ("MemoryPressure", "True", False),
        ("GpuMetricsWatched", "True", False),
    ],
)
def test_only_conditions_about_hardware_count(kind: str, status: str, bad: bool) -> None:  # noqa: FBT001 - a column
    """Each says when it began, which a restart of the operator does not change."""
    found = list(conditions_of(node((kind, status))))
    assert len(found) == bad
    for one in found:
        assert (one.host, one.cause, one.job) == ("gpu-7", StrikeCause.CONDITION, NODE_SOURCE)
        assert one.at == NOW - 60.0
        assert one.text == f"condition {kind} is {status}: Why"


def test_several_conditions_of_one_moment_are_kept_apart() -> None:
    """And read again after a restart they are the same."""
    body = node(("GpuMemWatch", "True"), ("GpuSmWatch", "True"))
    kept = merge([], conditions_of(body), NOW)
    assert len(kept) == 2
    assert merge(from_data(to_data(kept)), conditions_of(body), NOW) == kept


@pytest.mark.parametrize(
    "body", [{"metadata": {"name": "a"}}, {"metadata": {"name": "a"}, "spec": None}]
)
def test_a_node_that_shows_nothing_has_no_strike(body: dict[str, Any]) -> None:
    """Nor has one whose condition has no readable time: it would be new again and again."""
    assert list(conditions_of(body)) == []
    assert cordon_of(body, NOW) is None
    odd = node(("GpuMemWatch", "True"))
    for text in (None, "yesterday"):
        odd["status"]["conditions"][0]["lastTransitionTime"] = text
        assert list(conditions_of(odd)) == []


def test_a_cordon_that_nobody_explains_says_next_to_nothing() -> None:
    """Most of them are maintenance."""
    one = cordon_of(node(cordoned=True), NOW)
    assert one is not None
    assert (one.cause, one.at, one.text) == (
        StrikeCause.CORDON,
        NOW,
        "cordoned without a known reason",
    )
    assert WEIGHTS[StrikeCause.CORDON] * 10 <= WEIGHTS[StrikeCause.CONDITION]
    assert is_cordoned(node(cordoned=True))
    assert cordon_of(node(), NOW) is None


def test_a_cordon_before_a_planned_end_is_no_strike() -> None:
    """The node goes for a reason that has nothing to do with its health."""
    body = node(cordoned=True)
    body["spec"]["taints"] = [{"key": "ToBeDeletedByClusterAutoscaler"}]
    assert cordon_of(body, NOW) is None


def test_a_cordon_by_a_monitor_of_hardware_counts_as_a_condition() -> None:
    """NVSentinel writes down that it was it, and why."""
    labels = {CORDONED_BY: "NVSentinel", CORDON_REASON: "GPU-fatal-error-ruleset"}
    one = cordon_of(node(cordoned=True, labels=labels), NOW)
    assert one is not None
    assert one.cause is StrikeCause.CONDITION
    assert one.text == "cordoned by NVSentinel: GPU-fatal-error-ruleset"
