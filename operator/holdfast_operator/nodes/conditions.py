"""Signs in the object of a Kubernetes node: an announced end, bad hardware, silence. Pure.

A cordon (`node.kubernetes.io/unschedulable`) is no notice, because its pods stay. Neither is a node
that only may be removed (`DeletionCandidateOfClusterAutoscaler`) or is silent (`unreachable`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.nodes.strikes import NodeStrike, of_node
from holdfast_wire.messages import NoticeKind, NoticeReceived
from holdfast_wire.strikes import StrikeCause

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
TRUE_IS_BAD: Final = frozenset(
    {
        # node-problem-detector, kernel monitors
        "KernelDeadlock",
        "ReadonlyFilesystem",
        "FrequentUnregisterNetDevice",
        "CperHardwareErrorFatal",
        # AKS
        "FilesystemCorruptionProblem",
        "GPUMissing",
        "NVLinkStatusInactive",
        "XIDErrors",
        "IBLinkFlapping",
    }
)
"""Types of conditions that say hardware trouble when they are True. Sources: docs/health.md."""
FALSE_IS_BAD: Final = frozenset({"AcceleratedHardwareReady", "StorageReady"})
"""The same when they are False: EKS."""
NVSENTINEL: Final = re.compile(r"Gpu\w+(Watch|Error)|SysLogs(XIDError|SXIDError|GPUFallenOff)")
"""Checks of NVSentinel: each is the type of a condition that is True while the check fails."""
CORDONED_BY: Final = "k8saas.nvidia.com/cordon-by"
CORDON_REASON: Final = "k8saas.nvidia.com/cordon-reason"
"""Labels of a node that NVSentinel has cordoned."""


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


def conditions_of(body: Mapping[str, Any]) -> Iterator[NodeStrike]:
    """Yield a strike for each condition that says hardware trouble, at the time when it began."""
    for one in (body.get("status") or {}).get("conditions") or ():
        began = _unix(one.get("lastTransitionTime"))
        if _is_bad(str(one.get("type")), str(one.get("status"))) and began is not None:
            reason = str(one.get("reason") or "")
            text = f"condition {one['type']} is {one['status']}" + (reason and f": {reason}")
            yield of_node(body["metadata"]["name"], StrikeCause.CONDITION, began, text)


def is_silent(body: Mapping[str, Any]) -> bool:
    """Return True if the cluster hears nothing of the node's kubelet: nothing starts or ends there.

    A kubelet that is heard, and says that it is not ready, starts and ends containers all the same.
    """
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("status")) == ("Ready", "Unknown") for one in conditions)


def is_cordoned(body: Mapping[str, Any]) -> bool:
    """Return True if the node takes no new pods."""
    return bool((body.get("spec") or {}).get("unschedulable"))


def cordon_of(body: Mapping[str, Any], now: float) -> NodeStrike | None:
    """Return the strike that a fresh cordon is; None: it is not cordoned, or its end is announced.

    A cordon has no time of its own: the node was cordoned a moment before `now` (Unix time, s).
    """
    if not is_cordoned(body) or notice_of(body) is not None:
        return None
    name, labels = body["metadata"]["name"], body["metadata"].get("labels") or {}
    who, why = labels.get(CORDONED_BY), labels.get(CORDON_REASON)
    if who:
        text = f"cordoned by {who}" + (f": {why}" if why else "")
        return of_node(name, StrikeCause.CONDITION, now, text)
    return of_node(name, StrikeCause.CORDON, now, "cordoned without a known reason")


def _is_bad(kind: str, status: str) -> bool:
    if status == "True":
        return kind in TRUE_IS_BAD or NVSENTINEL.fullmatch(kind) is not None
    return status == "False" and kind in FALSE_IS_BAD


def _unix(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
