"""What the object of a Kubernetes node says: an announced end, bad hardware, nothing of either."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.nodes.conditions import (
    CONDITIONS,
    CORDON_REASON,
    CORDONED_BY,
    TAINTS,
    conditions_of,
    cordon_of,
    is_cordoned,
    notice_of,
)
from holdfast_operator.nodes.strikes import from_data, merge, to_data
from holdfast_wire.messages import NoticeKind
from holdfast_wire.strikes import NODE_SOURCE, WEIGHTS, StrikeCause
from house.repository import ROOT

TAKEN = (NoticeKind.PREEMPTION, False)
RISK = (NoticeKind.PREEMPTION, True)
ENDS = (NoticeKind.MAINTENANCE, False)
PAUSES = (NoticeKind.MAINTENANCE, True)
NOW = 1_767_225_660.0
BEGAN = "2026-01-01T00:00:00Z"


def node(*taints: str, **conditions: tuple[str, str]) -> dict[str, Any]:
    """Return a node with these taints, and conditions of a status and a message each."""
    return {
        "metadata": {"name": "gpu-7", "uid": "n-7"},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True"},
                *(
                    {"type": kind, "status": status, "message": message}
                    for kind, (status, message) in conditions.items()
                ),
            ]
        },
    }


def meaning(body: dict[str, Any]) -> tuple[NoticeKind, bool] | None:
    """Return what decides about the consequence; None: there is no notice."""
    found = notice_of(body)
    return None if found is None else (found.kind, found.stays)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("cloud.google.com/impending-node-termination", TAKEN),
        ("aws-node-termination-handler/spot-itn", TAKEN),
        ("aws-node-termination-handler/asg-lifecycle-termination", TAKEN),
        ("aws-node-termination-handler/scheduled-maintenance", ENDS),
        ("aws-node-termination-handler/rebalance-recommendation", RISK),
        ("remediator.kubernetes.azure.com/unschedulable", ENDS),
        ("karpenter.sh/disrupted", TAKEN),
        ("karpenter.sh/disruption", TAKEN),
        ("ToBeDeletedByClusterAutoscaler", TAKEN),
        ("node.cloudprovider.kubernetes.io/shutdown", TAKEN),
        ("node.kubernetes.io/out-of-service", TAKEN),
        ("node.kubernetes.io/unschedulable", None),
        ("node.kubernetes.io/unreachable", None),
        ("node.kubernetes.io/not-ready", None),
        ("DeletionCandidateOfClusterAutoscaler", None),
        ("nvidia.com/gpu", None),
        ("kubernetes.azure.com/scalesetpriority", None),
        ("cloud.google.com/gke-spot", None),
    ],
)
def test_a_taint_that_announces_an_end_is_a_notice(key: str, expected: object) -> None:
    """A cordon, a silent node and a mere candidate for removal are none."""
    assert meaning(node(key)) == expected


def test_a_notice_names_the_node_and_the_taint() -> None:
    """People look there first."""
    found = notice_of(node("nvidia.com/gpu", "karpenter.sh/disrupted"))
    assert found is not None
    assert found.source == "Kubernetes node gpu-7"
    assert found.text == "taint karpenter.sh/disrupted"
    assert found.seconds_left == 0.0


AZURE = "Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. For more information, see …"


@pytest.mark.parametrize(
    ("kind", "status", "message", "expected"),
    [
        ("PreemptionScheduled", "True", f"Preempt {AZURE}", TAKEN),
        ("PreemptionScheduled", "True", "", TAKEN),
        ("PreemptionScheduled", "True", "SpotRebalanceRecommendation Advisory:", RISK),
        ("PreemptionScheduled", "False", "", None),
        ("VMEventScheduled", "True", f"Preempt {AZURE}", TAKEN),
        ("VMEventScheduled", "True", f"Terminate {AZURE}", TAKEN),
        ("VMEventScheduled", "True", f"Reboot {AZURE}", ENDS),
        ("VMEventScheduled", "True", f"Redeploy {AZURE}", ENDS),
        ("VMEventScheduled", "True", f"Freeze {AZURE}", PAUSES),
        ("VMEventScheduled", "True", "IMDS unavailable", PAUSES),
        ("VMEventScheduled", "False", "VM has no scheduled event", None),
        ("DiskPressure", "True", "Preempt Scheduled: soon", None),
    ],
)
def test_a_condition_of_aks_means_what_its_event_does(
    kind: str, status: str, message: str, expected: object
) -> None:
    """The condition alone may be a freeze of seconds: its message names the event."""
    assert meaning(node(**{kind: (status, message)})) == expected


def test_the_same_event_at_another_time_is_the_same_notice() -> None:
    """The node problem detector writes the condition anew every two seconds."""
    later = AZURE.replace("05:41:02", "05:41:04")
    assert notice_of(node(VMEventScheduled=("True", f"Reboot {AZURE}"))) == notice_of(
        node(VMEventScheduled=("True", f"Reboot {later}"))
    )


def test_the_gravest_of_several_counts() -> None:
    """A node that leaves is not kept by a mere risk."""
    body = node(
        "aws-node-termination-handler/rebalance-recommendation",
        "aws-node-termination-handler/spot-itn",
        VMEventScheduled=("True", f"Freeze {AZURE}"),
    )
    assert meaning(body) == TAKEN


def test_a_node_without_taints_and_conditions_has_none() -> None:
    """As the API server shows a node that has just been registered."""
    assert notice_of({"metadata": {"name": "n"}, "spec": {}}) is None


def test_the_page_names_every_taint_and_condition() -> None:
    """Whoever wonders why a node leaves finds its taint there."""
    page = (ROOT / "docs/reference/notices.md").read_text(encoding="utf-8")
    assert [key for key in (*TAINTS, *CONDITIONS) if f"`{key}`" not in page] == []


def showing(
    *conditions: tuple[str, str], cordoned: bool = False, **metadata: Any
) -> dict[str, Any]:
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
    found = list(conditions_of(showing((kind, status))))
    assert len(found) == bad
    for one in found:
        assert (one.host, one.cause, one.job) == ("gpu-7", StrikeCause.CONDITION, NODE_SOURCE)
        assert one.unix_time == NOW - 60.0
        assert one.text == f"condition {kind} is {status}: Why"


def test_several_conditions_of_one_moment_are_kept_apart() -> None:
    """And read again after a restart they are the same."""
    body = showing(("GpuMemWatch", "True"), ("GpuSmWatch", "True"))
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
    odd = showing(("GpuMemWatch", "True"))
    for text in (None, "yesterday"):
        odd["status"]["conditions"][0]["lastTransitionTime"] = text
        assert list(conditions_of(odd)) == []


def test_a_cordon_that_nobody_explains_says_next_to_nothing() -> None:
    """Most of them are maintenance."""
    one = cordon_of(showing(cordoned=True), NOW)
    assert one is not None
    assert (one.cause, one.unix_time, one.text) == (
        StrikeCause.CORDON,
        NOW,
        "cordoned without a known reason",
    )
    assert WEIGHTS[StrikeCause.CORDON] * 10 <= WEIGHTS[StrikeCause.CONDITION]
    assert is_cordoned(showing(cordoned=True))
    assert cordon_of(showing(), NOW) is None


def test_a_cordon_before_a_planned_end_is_no_strike() -> None:
    """The node goes for a reason that has nothing to do with its health."""
    body = showing(cordoned=True)
    body["spec"]["taints"] = [{"key": "ToBeDeletedByClusterAutoscaler"}]
    assert cordon_of(body, NOW) is None


def test_a_cordon_by_a_monitor_of_hardware_counts_as_a_condition() -> None:
    """NVSentinel writes down that it was it, and why."""
    labels = {CORDONED_BY: "NVSentinel", CORDON_REASON: "GPU-fatal-error-ruleset"}
    one = cordon_of(showing(cordoned=True, labels=labels), NOW)
    assert one is not None
    assert one.cause == StrikeCause.CONDITION
    assert one.text == "cordoned by NVSentinel: GPU-fatal-error-ruleset"
