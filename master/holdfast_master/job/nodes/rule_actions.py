"""Actions of failure rules on a culprit besides a new round: it is replaced, its host excluded.

The operator bounds the number of excluded hosts, as the spec says.
"""

from __future__ import annotations

from holdfast_master.job.nodes import liveness, replacement
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.incident import OpenIncident
from holdfast_master.policies.failure import EvidenceKind
from holdfast_wire.messages import ExcludeDecision, FailureAction, NodeExcluded
from holdfast_wire.reasons import EventReason


def act(job: JobContext) -> None:
    """Carry the rules' answers to the open incidents out."""
    for incident in job.incidents.open():
        rank = incident.to_replace
        if rank is not None:
            incident.replaced.add(rank)
            _replace(job, incident, rank)


def _replace(job: JobContext, incident: OpenIncident, rank: int) -> None:
    elsewhere = incident.response.action is FailureAction.REPLACE_ON_OTHER_NODE
    why = incident.response.reason
    host = exclude(job, rank, why) if elsewhere else ""
    node = job.membership.agent(rank, incident.best.agent_id)
    if node is None:
        return  # it is gone already, and its replacement asked for
    if replacement.ask(job, rank, node.pod_uid, why, avoid_node=host):
        node.condemned = True
        liveness.drain(job, node, EvidenceKind.DRAINED, f"node {rank} is replaced: {why}")
    else:
        text = f"nobody can replace node {rank}; its processes are restarted in place: {why}"
        job.out.warn(EventReason.REPLACE_REQUESTED, text, node=rank)


def exclude(job: JobContext, rank: int, reason: str, *, others_leave: bool = True) -> str:
    """Exclude the Kubernetes node of this node rank; its name, empty where it is not known.

    others_leave: the job's other nodes there leave, too.

    The operator keeps new pods away from it. It may forget the oldest ones, as the spec says: a pod
    that it puts there is as good as any, and where that one fails the node becomes the newest.
    """
    host = job.operator.host_of(rank)
    if not host:
        return host
    if host != next(reversed(job.state.excluded), None):
        job.out.record(NodeExcluded(node=host, reason=reason), durable=True)
        job.out.event(
            EventReason.NODE_EXCLUDED, f"{host} is avoided from now on: {reason}", node=rank
        )
        number = job.out.command("exclude", rank)
        job.out.send_operator(ExcludeDecision(decision_id=number, node=host, reason=reason))
    if others_leave:
        _move(job, rank, host)
    return host


def lift(job: JobContext, host: str, reason: str) -> None:
    """Take an exclusion back: replacements may come to this Kubernetes node again."""
    if host in job.state.excluded:
        job.out.record(NodeExcluded(node=host, reason=reason, lifted=True), durable=True)
        number = job.out.command("exclude", 0)
        job.out.send_operator(
            ExcludeDecision(decision_id=number, node=host, reason=reason, lifted=True)
        )


def _move(job: JobContext, culprit: int, host: str) -> None:
    """The job's other nodes on an excluded host leave too, and get new pods."""
    for rank, node in sorted(job.membership.nodes.items()):
        pod = job.operator.pods.get(rank)
        there = pod is not None and pod.node == host and pod.pod_uid == node.pod_uid
        if rank == culprit or not there or node.draining is not None:
            continue
        why = f"it is on {host}, which is avoided"
        liveness.renew(job, node, why, f"node {rank} leaves: {why}")
