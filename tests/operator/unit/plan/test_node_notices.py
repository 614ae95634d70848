"""Taints and conditions of Kubernetes nodes that announce the node's end, and those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator.plan.node_notices import CONDITIONS, TAINTS, notice_of
from holdfast_wire.messages import NoticeKind
from house.repository import ROOT

TAKEN = (NoticeKind.PREEMPTION, False)
RISK = (NoticeKind.PREEMPTION, True)
ENDS = (NoticeKind.MAINTENANCE, False)
PAUSES = (NoticeKind.MAINTENANCE, True)


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
