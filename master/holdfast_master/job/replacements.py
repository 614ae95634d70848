"""What the operator is asked to do about pods: make anew, release.

Belongs here: issuing those decisions once and repeating them to a new operator stream. Does not
belong here: why a node is to go, which hosts are avoided (`exclusions`).
"""

from __future__ import annotations

from holdfast_master.job import candidacy
from holdfast_master.job.desk import Desk
from holdfast_master.job.operator_view import is_over
from holdfast_master.job.roster import Node
from holdfast_master.job.state import RELEASED
from holdfast_master.job.wording import listing
from holdfast_wire.messages import (
    CommandFinished,
    ExcludeDecision,
    JobPhase,
    Leave,
    LeaveOutcome,
    NodeMarked,
    PodObservation,
    ReleaseDecision,
    ReplaceDecision,
)
from holdfast_wire.reasons import EventReason

_NO_REPLACEMENT = frozenset(
    {JobPhase.STOPPING, JobPhase.SUSPENDED, JobPhase.SUCCEEDED, JobPhase.FAILED}
)
REPLACE = "replace"


def ask(desk: Desk, rank: int, pod_uid: str, reason: str, avoid_node: str = "") -> bool:
    """Ask for a new pod of this node rank; True: it was asked now or before."""
    view = desk.operator
    if not view.ever or rank >= desk.wanted or desk.state.phase in _NO_REPLACEMENT:
        return False
    if desk.state.stop is not None:
        return False  # it ends, once what is in memory is on storage
    before = view.replacing.get(rank)
    if before is not None and before.pod_uid == pod_uid:
        return True
    number = desk.command(REPLACE, rank)
    decision = ReplaceDecision(
        decision_id=number, node_rank=rank, pod_uid=pod_uid, reason=reason, avoid_node=avoid_node
    )
    view.replacing[rank] = decision
    view.note_asked(rank, pod_uid)
    desk.event(EventReason.REPLACE_REQUESTED, f"node {rank} is to be replaced: {reason}", node=rank)
    desk.tell(decision)
    return True


def recall(desk: Desk) -> None:
    """Another size is wanted: nodes that were drained come back where their ranks are in it."""
    for rank, pod in sorted(desk.operator.pods.items()):
        left = is_over(pod) and rank not in desk.roster.nodes and rank not in desk.state.finished
        if left and rank < desk.wanted:
            ask(desk, rank, pod.pod_uid, f"{desk.wanted} nodes are wanted")


def settle(desk: Desk, pod: PodObservation) -> None:
    """A pod was seen: a newer one of the rank is what was asked for."""
    decision = desk.operator.replacing.get(pod.node_rank)
    if decision is None or decision.pod_uid == pod.pod_uid:
        return
    if desk.operator.is_coming(pod.node_rank):
        del desk.operator.replacing[pod.node_rank]
        desk.record(CommandFinished(command_id=decision.decision_id, ok=True))


def repeat(desk: Desk) -> None:
    """A new operator stream: say again what is still wanted."""
    for rank in sorted(desk.operator.replacing):
        desk.tell(desk.operator.replacing[rank])
    for host, reason in desk.state.excluded.items():  # the newest last: the oldest is forgotten
        desk.tell(ExcludeDecision(decision_id=0, node=host, reason=reason))
    ranks = tuple(sorted(desk.state.released))
    if ranks:
        desk.tell(ReleaseDecision(decision_id=0, node_ranks=ranks, reason="released before"))


def release(desk: Desk, nodes: list[Node], reason: str, *, free_pods: bool) -> None:
    """Tell agents to leave; `free_pods`: their pods are not wanted any more."""
    if not nodes:
        return
    ranks = sorted(node.rank for node in nodes)
    if free_pods:
        number = desk.command("release", ranks[0])
        desk.tell(ReleaseDecision(decision_id=number, node_ranks=tuple(ranks), reason=reason))
    for node in nodes:
        mark = NodeMarked(node_rank=node.rank, agent_id=node.agent_id, mark=RELEASED, value=True)
        desk.record(mark, durable=True)
        candidacy.refresh(desk, node)
        leave(desk, node, LeaveOutcome.RELEASED, reason, desk.settings.stop_grace_seconds)
    desk.event(EventReason.NODE_RELEASED, f"nodes {listing(ranks)} are released: {reason}")


def leave(desk: Desk, node: Node, outcome: LeaveOutcome, reason: str, grace: float) -> None:
    """Tell an agent to end its processes and itself."""
    if node.session is None:
        return
    number = desk.command("leave", node.rank)
    message = Leave(command_id=number, grace_seconds=grace, reason=reason, outcome=outcome)
    desk.send(node, message)
