"""Finds out from a Kubernetes node's conditions and cordon whether others found its hardware bad.

Pure. Belongs here: the conditions of node-problem-detector, NVSentinel and clouds that say so, and
what a cordon means. Does not belong here: reading nodes (`kube.node_reflector`), what a strike
leads to (`node_exclusion`, the master's), announced ends (`node_notices`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.plan.node_notices import notice_of
from holdfast_operator.plan.node_strikes import NodeStrike
from holdfast_wire.strikes import NODE_SOURCE, StrikeCause

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


def conditions_of(body: Mapping[str, Any]) -> Iterator[NodeStrike]:
    """Yield a strike for each condition that says hardware trouble, at the time when it began."""
    for one in (body.get("status") or {}).get("conditions") or ():
        began = _unix(one.get("lastTransitionTime"))
        if _is_bad(str(one.get("type")), str(one.get("status"))) and began is not None:
            reason = str(one.get("reason") or "")
            text = f"condition {one['type']} is {one['status']}" + (reason and f": {reason}")
            yield _strike(body, StrikeCause.CONDITION, began, text)


def is_silent(body: Mapping[str, Any]) -> bool:
    """Return whether the cluster hears nothing of the node's kubelet: nothing starts or ends there.

    A kubelet that is heard, and says that it is not ready, starts and ends containers all the same.
    """
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("status")) == ("Ready", "Unknown") for one in conditions)


def is_cordoned(body: Mapping[str, Any]) -> bool:
    """Return whether the node takes no new pods."""
    return bool((body.get("spec") or {}).get("unschedulable"))


def cordon_of(body: Mapping[str, Any], now: float) -> NodeStrike | None:
    """Return the strike that a fresh cordon is; None: it is not cordoned, or its end is announced.

    Args:
        body: The node, cordoned a moment ago.
        now: Unix time, s: a cordon has no time of its own.
    """
    if not is_cordoned(body) or notice_of(body) is not None:
        return None
    labels = (body.get("metadata") or {}).get("labels") or {}
    who, why = labels.get(CORDONED_BY), labels.get(CORDON_REASON)
    if who:
        text = f"cordoned by {who}" + (f": {why}" if why else "")
        return _strike(body, StrikeCause.CONDITION, now, text)
    return _strike(body, StrikeCause.CORDON, now, "cordoned without a known reason")


def _is_bad(kind: str, status: str) -> bool:
    if status == "True":
        return kind in TRUE_IS_BAD or NVSENTINEL.fullmatch(kind) is not None
    return status == "False" and kind in FALSE_IS_BAD


def _strike(body: Mapping[str, Any], cause: StrikeCause, at: float, text: str) -> NodeStrike:
    return NodeStrike(
        host=body["metadata"]["name"],
        cause=cause,
        at=round(at, 3),
        job=NODE_SOURCE,
        job_uid=NODE_SOURCE,
        node_rank=0,
        text=text,
    )


def _unix(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
