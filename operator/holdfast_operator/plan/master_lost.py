"""Detects a master lost with its node, long before Kubernetes reports it.

The node of such a master reports nothing, so its pod looks well for minutes. Known sooner are the
broken stream to it, and that its node answers no probe while others do, or at least that the stream
cannot be opened again. A wrong verdict costs a new master, which the workers join without a new
round. It must still be rare, and never come twice for one reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast_operator.plan.inputs import PlannedJob
from holdfast_operator.plan.pods import ObservedPod, Role
from holdfast_operator.plan.view import MasterView

SILENT_SECONDS: Final = 10.0
"""Time for which a master may be unreachable if nothing is known of its node. An operator that
cannot renew its Lease ends after 10 s. So one that is cut off from everything ends before it judges
a master."""
AGAIN_SECONDS: Final = 2.0
"""Time until another look while this side itself may be cut off."""


def judged(
    pods: Iterable[ObservedPod], job: PlannedJob, master: MasterView, now: float
) -> Iterator[ObservedPod]:
    """Yield the pods; mark a master as lost if its node does not answer."""
    for pod in pods:
        at = verdict_at(pod, job, master)
        sure = pod.node in job.unreachable or not job.cut_off
        gone = at is not None and now >= at and sure
        yield dataclasses.replace(pod, lost=True) if gone else pod


def verdict_at(pod: ObservedPod, job: PlannedJob, master: MasterView) -> float | None:
    """Return the time at which a master's pod counts as lost; None: nothing speaks for that.

    Either the master was reached once, and its node has not reported the end of a container since:
    a new master that was never reached is not replaced again. Or the cluster hears nothing of its
    node either, which is all that a freshly started operator has. A node that is known to answer
    nothing gets no more time; nor does a pod there that never began, as its kubelet is gone.
    """
    if pod.slot.role is not Role.MASTER or not pod.live or master.connected:
        return None
    met = pod.uid == master.speaker and pod.serving
    stranded = pod.node in job.unreachable and not pod.serving
    if not met and not pod.unheard and not stranded:
        return None
    since = job.first_seen_at if master.silent_since is None else master.silent_since
    return since if pod.node in job.unreachable else since + SILENT_SECONDS


def cut_off(reached: Iterable[bool], nodes: Iterable[str]) -> bool:
    """Return whether rather this side reaches no master. It looks no further than needed.

    Args:
        reached: For each master: whether a stream to it is open.
        nodes: Nodes of masters that were reached once and should be there.
    """
    if any(reached):
        return False
    first: str | None = None
    for node in nodes:
        if first is None:
            first = node
        elif node != first:
            return True
    return False
