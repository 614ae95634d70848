"""Whether a master is gone together with its node, long before Kubernetes says so.

Its node reports nothing any more, so its pod looks well for minutes: what is known sooner is that
the stream to it broke, and that its node answers nothing while others do, or at least that the
stream cannot be opened again. A wrong verdict costs a new master, which the workers join without a
new round; it must still be rare, and never come twice for one reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast_operator.plan.pods import ObservedPod, Role
from holdfast_operator.plan.situation import Job
from holdfast_operator.plan.view import MasterView

SILENT_S: Final = 10.0
"""How long a master may not be reached of whose node nothing is known. No less than an operator
lives that cannot renew its Lease (10 s): one that is cut off from everything ends before it judges
anybody."""
AGAIN_S: Final = 2.0
"""Until a look again while this side itself may be cut off."""


def judged(
    pods: Iterable[ObservedPod], job: Job, master: MasterView, now: float
) -> Iterator[ObservedPod]:
    """The pods, a master lost that is on a node which does not answer."""
    for pod in pods:
        at = verdict_at(pod, job, master)
        sure = pod.node in job.unreachable or not job.cut_off
        gone = at is not None and now >= at and sure
        yield dataclasses.replace(pod, lost=True) if gone else pod


def verdict_at(pod: ObservedPod, job: Job, master: MasterView) -> float | None:
    """When a master's pod counts as lost; None: nothing speaks for that.

    Either it was reached once, and its node has not said since that a container of it ended: a new
    master that was never reached is not made anew again. Or the cluster, too, hears nothing of its
    node, which is all that an operator has that was just started. A node that is known to answer
    nothing is given no more time; nor is one there that never began, as its kubelet is gone.
    """
    if pod.slot.role is not Role.MASTER or not pod.live or master.connected:
        return None
    met = pod.uid == master.speaker and pod.serving
    stranded = pod.node in job.unreachable and not pod.serving
    if not met and not pod.unheard and not stranded:
        return None
    since = job.first_seen_at if master.silent_since is None else master.silent_since
    return since if pod.node in job.unreachable else since + SILENT_S


def cut_off(reached: Iterable[bool], nodes: Iterable[str]) -> bool:
    """Whether it is rather this side that reaches nobody. Asks no further than it has to.

    Args:
        reached: Of each master whether a stream to it is open.
        nodes: Of those that were reached once and should be there.
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
