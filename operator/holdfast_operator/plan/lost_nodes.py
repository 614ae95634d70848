"""Nodes that the operator itself knows to be gone, and pods that will never start there. Pure.

Kubernetes notices a lost node after 40 s, and keeps its pods for minutes. Until then the scheduler
takes it for the emptiest node of all, and a preference against it loses to any other preference. So
a new pod must not run there.

The exclusion ends by itself: the node answers again, its lost pods are gone, or
SURE_SECONDS are over. After that the cluster knows as well: a dead node has a taint then, and one
without a taint lives, whatever holds its pods. A pod that finds no other node waits until then; an
autoscaler sees it wait, which it would not if the pod were bound to the lost node.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from holdfast_operator.plan.inputs import PlannedJob
from holdfast_operator.plan.pods import OVERDUE_SECONDS, ObservedPod
from holdfast_wire.messages import PodPhase

SURE_SECONDS: Final = 120.0
"""Time from a lost pod on in which its node is excluded outright: Kubernetes' own 40 s, or a slow
cluster's two minutes."""


def gone(pods: Iterable[ObservedPod], job: PlannedJob, now: float) -> dict[str, float]:
    """Return the nodes that no new pod may run on, each with the time at which that ends, Unix s.

    Args:
        pods: The job's pods; those that are lost are marked.
        job: The job.
        now: Unix time, s.
    """
    until = dict.fromkeys(job.unreachable, math.inf)
    for pod in pods:
        if pod.lost and pod.node:
            since = now if pod.gone_by is None else pod.gone_by + OVERDUE_SECONDS
            until[pod.node] = max(until.get(pod.node, 0.0), since + SURE_SECONDS)
    return {node: end for node, end in sorted(until.items()) if now < end}


def stranded(
    pods: Iterable[ObservedPod], job: PlannedJob, excluded: Collection[str]
) -> Iterator[ObservedPod]:
    """Yield the pods; mark those as lost that are bound to such a node and have not started.

    No kubelet will start them, or end them. They were made before anybody knew, or tolerate every
    taint.

    Args:
        pods: The job's pods.
        job: The job.
        excluded: The nodes that no new pod may run on.
    """
    dead = {*excluded, *job.silent_nodes}
    for pod in pods:
        waits = pod.live and pod.phase is PodPhase.PENDING and pod.node in dead
        yield dataclasses.replace(pod, lost=True) if waits else pod
