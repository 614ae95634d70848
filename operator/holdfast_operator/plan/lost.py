"""Pods and nodes that count as lost, long before Kubernetes reports them. Pure.

Kubernetes notices a lost node after 40 s, and keeps its pods for minutes. Until then the scheduler
takes it for the emptiest node of all, and a preference against it loses to any other preference. So
a new pod must not run there. The exclusion ends by itself: the node answers again, its lost pods
are gone, or SURE_SECONDS are over. After that the cluster knows as well: a dead node has a taint
then, and one without a taint lives, whatever holds its pods. A pod that finds no other node waits
until then; an autoscaler sees it wait, which it would not if the pod were bound to the lost node.

The pod of a master on such a node looks well for minutes. Known sooner are the broken stream to it,
and that its node answers no probe while others do, or at least that the stream cannot be opened
again. A wrong verdict costs a new master, which the workers join without a new round. It must still
be rare, and never come twice for one reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from holdfast_operator.plan.inputs import PlannedJob
from holdfast_operator.plan.pods import OVERDUE_SECONDS, ObservedPod, Role
from holdfast_operator.plan.view import MasterView
from holdfast_wire.messages import PodPhase

SURE_SECONDS: Final = 120.0
"""Time from a lost pod on in which its node is excluded outright: Kubernetes' own 40 s, or a slow
cluster's two minutes."""
SILENT_SECONDS: Final = 10.0
"""Time for which a master may be unreachable if nothing is known of its node. An operator that
cannot renew its Lease ends after 10 s. So one that is cut off from everything ends before it judges
a master."""
AGAIN_SECONDS: Final = 2.0
"""Time until another look while this side itself may be cut off."""


def gone(pods: Iterable[ObservedPod], job: PlannedJob, now: float) -> dict[str, float]:
    """Return the nodes that no new pod may run on, each with the end of that, Unix time, s."""
    until = dict.fromkeys(job.unreachable, math.inf)
    for pod in pods:
        if pod.lost and pod.node:
            since = now if pod.gone_by is None else pod.gone_by + OVERDUE_SECONDS
            until[pod.node] = max(until.get(pod.node, 0.0), since + SURE_SECONDS)
    return {node: end for node, end in sorted(until.items()) if now < end}


def stranded(
    pods: Iterable[ObservedPod], job: PlannedJob, excluded: Collection[str]
) -> Iterator[ObservedPod]:
    """Yield the pods; mark those as lost that are bound to a dead node and have not started.

    No kubelet will start them, or end them. They were made before anybody knew, or tolerate every
    taint. `excluded`: the nodes that no new pod may run on.
    """
    dead = {*excluded, *job.silent_nodes}
    for pod in pods:
        waits = pod.live and pod.phase is PodPhase.PENDING and pod.node in dead
        yield dataclasses.replace(pod, lost=True) if waits else pod


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
    """Return True if rather this side reaches no master. It looks no further than needed.

    Args:
        reached: For each master: whether a stream to it is open.
        nodes: Nodes of masters that were reached once and should be there.
    """
    if any(reached):
        return False
    others = iter(nodes)
    first = next(others, None)
    return any(node != first for node in others)
