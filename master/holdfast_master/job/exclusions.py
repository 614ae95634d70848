"""Kubernetes nodes that are avoided from now on, and the job's nodes that are on them.

Belongs here: naming such a node to the operator, having its nodes leave. Does not belong here: why
it is avoided (`responses`), how many are at a time (the operator, as the spec says).
"""

from __future__ import annotations

from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.job import losses
from holdfast_master.job.desk import Desk
from holdfast_master.job.state import RENEW
from holdfast_wire.messages import ExcludeDecision, NodeExcluded
from holdfast_wire.reasons import EventReason


def exclude(desk: Desk, rank: int, reason: str) -> str:
    """Exclude the Kubernetes node of this node rank; its name, empty where it is not known.

    The operator keeps new pods away from it. It may forget the oldest ones, as the spec says: a pod
    that it puts there is as good as any, and where that one fails the node becomes the newest.
    """
    host = desk.operator.host_of(rank)
    if not host:
        return host
    if host != next(reversed(desk.state.excluded), None):
        desk.record(NodeExcluded(node=host, reason=reason), durable=True)
        desk.event(EventReason.NODE_EXCLUDED, f"{host} is avoided from now on: {reason}", node=rank)
        number = desk.command("exclude", rank)
        desk.tell(ExcludeDecision(decision_id=number, node=host, reason=reason))
    _move(desk, rank, host)
    return host


def _move(desk: Desk, culprit: int, host: str) -> None:
    """The job's other nodes on an excluded host leave too, and get new pods."""
    for rank, node in sorted(desk.roster.nodes.items()):
        pod = desk.operator.pods.get(rank)
        there = pod is not None and pod.node == host and pod.pod_uid == node.pod_uid
        if rank == culprit or not there or node.draining is not None:
            continue
        # The operator is asked once the others go on without it: see steering.
        node.replace_why = f"it is on {host}, which is avoided"
        desk.command(RENEW, rank, durable=True)
        losses.drain(desk, node, EvidenceKind.DRAINED, f"node {rank} leaves: {node.replace_why}")
