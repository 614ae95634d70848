"""What the operator sees of pods, as evidence about the nodes whose agents run in them.

Belongs here: whose pod it is, and what its state says. Does not belong here: what follows for the
node (`losses`) and for the job (`incidents`, `rounds`).
"""

from __future__ import annotations

from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.pod_ends import exit_code, pod_kind
from holdfast_master.job import candidacy, early_ends, incidents, losses, replacements
from holdfast_master.job.desk import Desk
from holdfast_master.job.operator_view import is_over
from holdfast_master.job.roster import Node
from holdfast_master.job.state import RELEASED
from holdfast_master.job.timers import Timer
from holdfast_master.job.wording import pod_end
from holdfast_wire.messages import PodObservation, PodPhase


def pod_seen(desk: Desk, pod: PodObservation) -> None:
    """What the operator sees of a pod is evidence about its node."""
    view = desk.operator
    if view.is_old(pod):
        _late(desk, pod)
        return
    view.note(pod)
    replacements.settle(desk, pod)
    _settle_rejoin(desk, pod)
    _doubt(desk, pod)
    desk.dirty = True
    node = desk.roster.nodes.get(pod.node_rank)
    if node is None:
        _late(desk, pod)
        early_ends.pod_seen(desk, pod)
    elif node.pod_uid == pod.pod_uid:
        _own_pod(desk, node, pod)
    elif node.pod_uid in view.superseded.get(node.rank, ()):
        text = f"pod {node.pod_uid} of node {node.rank} was followed by {pod.pod_uid}"
        losses.lose(desk, node, EvidenceKind.AGENT_REPLACED, text)
    else:
        _late(desk, pod)  # the agent of its next pod was faster than the operator


def pods_listed(desk: Desk) -> None:
    """Every pod has been named: pods and away nodes that were not do not exist."""
    view = desk.operator
    view.list_done = True
    for rank in sorted(set(view.pods) - view.listed):
        pod = view.pods[rank]
        if not is_over(pod):
            gone = PodObservation(
                node_rank=rank,
                pod_uid=pod.pod_uid,
                name=pod.name,
                phase=PodPhase.GONE,
                node=pod.node,
            )
            pod_seen(desk, gone)
    for rank in sorted(desk.roster.away - view.listed):
        node = desk.roster.nodes[rank]
        if node.hello is None or not node.hello.unmanaged:
            text = f"the pod of node {rank} does not exist"
            losses.lose(desk, node, EvidenceKind.PREEMPTED, text)
    desk.dirty = True


def _settle_rejoin(desk: Desk, pod: PodObservation) -> None:
    """A container that was to start again does not, or has a new pod: nobody waits for it."""
    if is_over(pod) or pod.terminating or not pod.ends:
        desk.timers.cancel(Timer.REJOIN, pod.node_rank)


def rejoin_due(desk: Desk, rank: int) -> None:
    """A container was started again, and its agent has not come."""
    pod = desk.operator.pods.get(rank)
    desk.dirty = True
    if pod is None or rank in desk.roster.nodes or not desk.operator.is_coming(rank):
        return
    limit = desk.settings.rejoin_seconds
    text = f"its container was started again, and no agent has joined within {limit:g} s"
    replacements.ask(desk, rank, pod.pod_uid, text)


def _doubt(desk: Desk, pod: PodObservation) -> None:
    """A node that answers nothing may have been lost together with the master before this one."""
    if pod.unreachable:
        until = desk.now + desk.settings.adopt_seconds
        desk.timers.ensure(Timer.UNREACHABLE, until, pod.node_rank)
    else:
        desk.timers.cancel(Timer.UNREACHABLE, pod.node_rank)


def unreachable_due(desk: Desk, rank: int) -> None:
    """A node answers nothing, and its agent has not come; one that is known is judged as ever."""
    view = desk.operator
    if rank in view.unreachable and rank not in desk.roster.nodes and view.is_coming(rank):
        text = "its Kubernetes node does not answer"
        replacements.ask(desk, rank, view.pods[rank].pod_uid, text)


def _own_pod(desk: Desk, node: Node, pod: PodObservation) -> None:
    if is_over(pod):
        losses.lose(desk, node, pod_kind(pod), pod_end(pod), pod=pod)
    elif pod.terminating:
        text = f"node {node.rank} leaves: its pod is deleted"
        losses.drain(desk, node, taken_kind(desk, node), text)
    elif pod.ends > node.pod_ends and node.session is None:
        # With a stream it may be the next agent's, which was faster than the operator.
        losses.lose(desk, node, pod_kind(pod), pod_end(pod), pod=pod)
    elif pod.ends > node.pod_ends:
        _explain(desk, node, pod)
    else:
        candidacy.refresh(desk, node)


def _explain(desk: Desk, node: Node, pod: PodObservation) -> None:
    """The pod's container has ended; if its next agent is there, it is known now how."""
    gone = desk.state.departed.get(node.rank)
    if gone is None or gone.pod_uid != pod.pod_uid:
        node.pod_ended_at = desk.now  # the stream is about to break, then
        return
    node.pod_ends = pod.ends
    incidents.report_late(desk, _end_of(pod, gone.agent_id, desk.now), node.rank)


def _end_of(pod: PodObservation, agent_id: str, now: float) -> Evidence:
    """A pod's end, of which its agent cannot tell."""
    return Evidence(
        kind=pod_kind(pod),
        text=pod_end(pod),
        at=now,
        node_rank=pod.node_rank,
        agent_id=agent_id,
        exit_code=exit_code(pod),
        conditions=pod.conditions,
    )


def taken_kind(desk: Desk, node: Node) -> EvidenceKind:
    """Why a node that was asked to end was asked: by a person's wish, or by somebody else."""
    pod = desk.operator.pods.get(node.rank)
    wanted = pod is not None and pod.pod_uid == node.pod_uid and pod.wanted
    replacing = desk.operator.replacing.get(node.rank)
    replaced = replacing is not None and replacing.pod_uid == node.pod_uid
    return EvidenceKind.NODE_REMOVED if wanted or replaced else EvidenceKind.PREEMPTED


def _late(desk: Desk, pod: PodObservation) -> None:
    gone = desk.state.departed.get(pod.node_rank)
    if gone is None or gone.pod_uid != pod.pod_uid or not is_over(pod):
        return
    if pod.wanted and pod.pod_uid in desk.operator.asked:
        return  # it was lost first, and is deleted because of that
    item = _end_of(pod, gone.agent_id, desk.now)
    released = desk.state.dismissed.get(gone.agent_id) == RELEASED
    if released and item.kind is not EvidenceKind.PREEMPTED:
        return  # it left as it was told
    incidents.report_late(desk, item, pod.node_rank)
