"""Finds out from a Kubernetes node's taints and conditions whether the node's end is announced.

Pure. Belongs here: the taints and conditions of cloud providers, autoscalers and Kubernetes that
say so. Does not belong here: reading nodes (`kube.node_reflector`), the consequences (the
master's).

A cordon (`node.kubernetes.io/unschedulable`) is no notice, because its pods stay. Neither is a node
that only may be removed (`DeletionCandidateOfClusterAutoscaler`) or is silent (`unreachable`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_wire.messages import NoticeKind, NoticeReceived

_PREEMPTION: Final = (NoticeKind.PREEMPTION, False)
_RISK: Final = (NoticeKind.PREEMPTION, True)
_MAINTENANCE: Final = (NoticeKind.MAINTENANCE, False)
_PAUSE: Final = (NoticeKind.MAINTENANCE, True)

TAINTS: Final[Mapping[str, tuple[NoticeKind, bool]]] = {
    "cloud.google.com/impending-node-termination": _PREEMPTION,
    "aws-node-termination-handler/spot-itn": _PREEMPTION,
    "aws-node-termination-handler/asg-lifecycle-termination": _PREEMPTION,
    "aws-node-termination-handler/scheduled-maintenance": _MAINTENANCE,
    "aws-node-termination-handler/rebalance-recommendation": _RISK,
    "remediator.kubernetes.azure.com/unschedulable": _MAINTENANCE,
    "remediator.aks.microsoft.com/unschedulable": _MAINTENANCE,
    "karpenter.sh/disrupted": _PREEMPTION,
    "karpenter.sh/disruption": _PREEMPTION,
    "ToBeDeletedByClusterAutoscaler": _PREEMPTION,
    "node.cloudprovider.kubernetes.io/shutdown": _PREEMPTION,
    "node.kubernetes.io/out-of-service": _PREEMPTION,
}
"""Key of a taint → kind of notice, and whether the node stays. Sources: reference/notices.md."""

CONDITIONS: Final[Mapping[str, tuple[NoticeKind, bool]]] = {
    "PreemptionScheduled": _PREEMPTION,
    "VMEventScheduled": _PAUSE,
}
"""Type of a condition of AKS that is True → the same, where its message names no event."""

_EVENTS: Final[Mapping[str, tuple[NoticeKind, bool]]] = {
    "Preempt": _PREEMPTION,
    "Terminate": _PREEMPTION,
    "Reboot": _MAINTENANCE,
    "Redeploy": _MAINTENANCE,
    "Freeze": _PAUSE,
    "SpotRebalanceRecommendation": _RISK,
}
"""First word of such a condition's message: `Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT.`"""


def notice_of(body: Mapping[str, Any]) -> NoticeReceived | None:
    """Return the gravest notice in a node object; None: there is none."""
    found = [*_of_taints(body), *_of_conditions(body)]
    return min(found, key=lambda notice: (notice.stays, notice.text), default=None)


def _of_taints(body: Mapping[str, Any]) -> Iterator[NoticeReceived]:
    for taint in (body.get("spec") or {}).get("taints") or ():
        meaning = TAINTS.get(taint.get("key", ""))
        if meaning is not None:
            yield _notice(body, meaning, f"taint {taint['key']}")


def _of_conditions(body: Mapping[str, Any]) -> Iterator[NoticeReceived]:
    for one in (body.get("status") or {}).get("conditions") or ():
        usual = CONDITIONS.get(one.get("type", ""))
        if usual is None or one.get("status") != "True":
            continue
        message = str(one.get("message") or "")
        event = message.partition(" ")[0]
        # The rest of the message has a date and an id, which say nothing to the job.
        text = f"condition {one['type']}" + (f": {event}" if event in _EVENTS else "")
        yield _notice(body, _EVENTS.get(event, usual), text)


def _notice(body: Mapping[str, Any], meaning: tuple[NoticeKind, bool], text: str) -> NoticeReceived:
    kind, stays = meaning
    name = body["metadata"]["name"]
    return NoticeReceived(kind=kind, source=f"Kubernetes node {name}", text=text, stays=stays)
