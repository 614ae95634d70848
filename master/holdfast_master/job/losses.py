"""Nodes that go: silent, disconnected, ended, superseded, or asked to leave.

Belongs here: telling a blip from a loss and what follows for the node itself. Does not belong here:
the limits (`decide.liveness`), what follows for the job (`incidents`, `rounds`).
"""

from __future__ import annotations

from holdfast_master.decide import liveness
from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.goodput import entries
from holdfast_master.decide.liveness import Health
from holdfast_master.decide.pod_ends import exit_code, pod_kind
from holdfast_master.instructions import CloseSession, RefusalCode
from holdfast_master.job import candidacy, incidents, replacements
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.state import DRAINING, RELEASED
from holdfast_master.job.timers import Timer
from holdfast_master.job.wording import pod_end
from holdfast_wire.messages import (
    GoodputMarked,
    JobPhase,
    NodeGone,
    NodeGoodput,
    NodeMarked,
    PodObservation,
)
from holdfast_wire.reasons import EventReason

_SECONDS_PER_HANDSHAKE = 0.005
"""Of a crowd that comes back, each takes about half of this; those that give up begin anew."""
_QUIET_PHASES = frozenset({JobPhase.STOPPING, JobPhase.SUCCEEDED, JobPhase.FAILED})


def disconnected(desk: Desk, session: int) -> None:
    """A stream ended. Without evidence the node is away, not lost.

    How it ended says nothing: the stream of a killed agent can look like an orderly end.
    """
    node = desk.roster.by_session(session)
    if node is None:
        return
    desk.roster.attach(node, None)
    node.disconnected_at = desk.now
    node.away_told = False
    candidacy.refresh(desk, node)
    desk.dirty = True
    if node.rank in desk.state.released or desk.state.phase in _QUIET_PHASES:
        lose(desk, node, EvidenceKind.NODE_REMOVED, "it was told to leave and left")
        return
    pod = desk.operator.pods.get(node.rank)
    if pod is not None and desk.now <= node.pod_ended_at + desk.settings.silence_seconds:
        lose(desk, node, pod_kind(pod), pod_end(pod), pod=pod)
        return
    watch(desk, node)


def watch(desk: Desk, node: Node) -> None:
    """Judge whether the node lives, and look again when that may have changed."""
    judgement = liveness.judge(node.pulse, desk.limits, desk.now)
    if judgement.health is Health.LOST:
        missing = len(desk.roster.away) * _SECONDS_PER_HANDSHAKE
        herd = desk.roster.returned_at + max(desk.settings.adopt_seconds, missing)
        if node.hello is None and desk.now < herd:
            # It waits for its turn: a thousand handshakes take longer than the silence limit.
            desk.timers.set(Timer.SILENCE, herd, node.rank)
            return
        text = f"node {node.rank} is {judgement.reason}"
        lose(desk, node, EvidenceKind.AGENT_SILENT, text, at=node.last_heard)
        return
    if judgement.health is Health.SUSPECT and node.rank not in desk.roster.quiet:
        desk.roster.quiet.add(node.rank)
    if judgement.health is Health.AWAY and not node.away_told:
        node.away_told = True
        text = f"node {node.rank} is {judgement.reason}"
        desk.event(EventReason.NODE_DISCONNECTED, text, Warn, node=node.rank)
    until = judgement.until
    if judgement.health is Health.ALIVE:
        until = liveness.next_look(until, node.heartbeat, desk.now)
    desk.timers.set(Timer.SILENCE, until, node.rank)


def silence_due(desk: Desk, rank: int) -> None:
    """The time to look at a node has come."""
    node = desk.roster.nodes.get(rank)
    if node is not None:
        watch(desk, node)


def heard(desk: Desk, node: Node) -> None:
    """Any message of a node."""
    node.last_heard = desk.now
    if node.rank in desk.roster.quiet:
        desk.roster.quiet.discard(node.rank)
        desk.dirty = True


def lose(
    desk: Desk,
    node: Node,
    kind: EvidenceKind,
    text: str,
    *,
    at: float | None = None,
    pod: PodObservation | None = None,
    followed: bool = False,
) -> None:
    """The node is gone. If it was in the world, that is an incident.

    followed: the next agent of its pod is there.
    """
    planned = node.rank in desk.state.released or desk.state.phase in _QUIET_PHASES
    world = desk.world
    member = world is not None and world.holds(node.rank, node.agent_id)
    _remove(desk, node, text)
    if not planned:
        desk.event(EventReason.NODE_LOST, text, Warn, node=node.rank)
    if planned:
        return
    item = Evidence(
        kind=_why_lost(node, kind),
        text=text,
        at=desk.now if at is None else at,
        node_rank=node.rank,
        agent_id=node.agent_id,
        exit_code=exit_code(pod) if pod else None,
        conditions=pod.conditions if pod else (),
    )
    if world is not None and member and node.rank in world.finished:
        return  # its work is done
    if world is not None and member:
        incidents.report_loss(desk, item, world, node.rank)
    elif node.draining is not None:
        incidents.report_late(desk, item, node.rank)
    else:
        incidents.report_gone(desk, item, node.rank)
    if item.kind is EvidenceKind.NODE_REMOVED:
        if node.draining is EvidenceKind.DRAINED:
            _went_early(desk, node)
        return
    if followed or desk.operator.starts_again(node.rank, node.pod_uid, node.pod_ends):
        # Its memory may lie in the pod: a new one would have to read everything from storage.
        desk.timers.ensure(Timer.REJOIN, desk.now + desk.settings.rejoin_seconds, node.rank)
    else:
        replacements.ask(desk, node.rank, node.pod_uid, text)


def _went_early(desk: Desk, node: Node) -> None:
    """A drained node is lost before it was told to leave: it stays away all the same.

    What was promised with the drain holds: its agent is not taken back when it is heard again, and
    who asked for another pod gets it.
    """
    mark = NodeMarked(node_rank=node.rank, agent_id=node.agent_id, mark=RELEASED, value=True)
    desk.record(mark, durable=True)
    why = node.replace_why
    if not why and not desk.bounds.fit(len(desk.roster.nodes.keys() - desk.state.draining)):
        why = "drained, and too few are left"
    if why:
        replacements.ask(desk, node.rank, node.pod_uid, why)


def _why_lost(node: Node, kind: EvidenceKind) -> EvidenceKind:
    """What a node's end is evidence of: for one that was to leave, why it was to leave."""
    if node.draining is EvidenceKind.DRAINED and not node.condemned:
        # It went before the boundary: that explains what breaks in the others.
        return EvidenceKind.NODE_REMOVED
    return node.draining or kind


def _remove(desk: Desk, node: Node, text: str) -> None:
    if node.session is not None:
        desk.put(CloseSession(node.session, RefusalCode.ABORTED, "NODE_LOST", text))
    desk.drop(node)
    for timer in (Timer.SILENCE, Timer.MISSING, Timer.STORE_RETRY):
        desk.timers.cancel(timer, node.rank)
    totals = desk.ledger.close(node.rank, desk.clock.micros)
    marked = NodeGoodput(node_rank=node.rank, classes=entries(totals))
    desk.record(GoodputMarked(nodes=(marked,)))
    desk.record(NodeGone(node_rank=node.rank, agent_id=node.agent_id, reason=text))


def drain(desk: Desk, node: Node, kind: EvidenceKind, text: str) -> None:
    """The node is to leave at the next boundary. The first reason explains what follows."""
    if node.draining is not None:
        return
    node.draining = kind
    mark = NodeMarked(node_rank=node.rank, agent_id=node.agent_id, mark=DRAINING, value=True)
    desk.record(mark, durable=True)
    desk.event(EventReason.NODE_DRAINING, text, node=node.rank)
    candidacy.refresh(desk, node)
    desk.dirty = True
