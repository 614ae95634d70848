"""Nodes that go: silent, disconnected, ended, superseded, or asked to leave."""

from __future__ import annotations

import dataclasses

from holdfast_master.instructions import CloseSession, RefusalCode
from holdfast_master.job.data import shards
from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import eligibility, replacement
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import DRAINING, RELEASED, RENEW
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.phases import OVER
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import pod_end
from holdfast_master.policies import liveness
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.goodput import entries
from holdfast_master.policies.liveness import NodeHealth
from holdfast_master.policies.pod_ends import exit_code, pod_kind
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

_SECONDS_PER_HANDSHAKE = 0.005
"""Twice the time of one handshake in a crowd that comes back; agents that give up begin anew."""


def disconnected(job: JobContext, session: int) -> None:
    """A stream ended. Without evidence the node is away, not lost.

    How it ended says nothing: the stream of a killed agent can look like an orderly end.
    """
    node = job.membership.by_session(session)
    if node is None:
        return
    job.membership.attach(node, None)
    node.disconnected_at = job.now
    node.away_noted = False
    eligibility.refresh(job, node)
    job.touch(Change.NODE_DISCONNECTED)
    if node.rank in job.state.released or job.state.phase in OVER:
        lose(job, node, EvidenceKind.NODE_REMOVED, "it was told to leave and left")
        return
    pod = job.operator.pods.get(node.rank)
    if pod is not None and job.now <= node.pod_ended_at + job.settings.silence_seconds:
        lose(job, node, pod_kind(pod), pod_end(pod), pod=pod)
        return
    watch(job, node)


def watch(job: JobContext, node: Node) -> None:
    """Judge whether the node lives, and look again when that may have changed."""
    judgement = liveness.judge(node.pulse, job.settings, job.now)
    if judgement.health is NodeHealth.LOST:
        missing = len(job.membership.away) * _SECONDS_PER_HANDSHAKE
        herd = job.membership.returned_at + max(job.settings.adopt_seconds, missing)
        if node.hello is None and job.now < herd:
            # It waits for its turn: a thousand handshakes take longer than the silence limit.
            job.timers.set(Timer.SILENCE, herd, node.rank)
            return
        text = f"node {node.rank} is {judgement.reason}"
        lose(job, node, EvidenceKind.AGENT_SILENT, text, at=node.last_heard)
        return
    if judgement.health is NodeHealth.SUSPECT:
        job.membership.quiet.add(node.rank)
    if judgement.health is NodeHealth.AWAY and not node.away_noted:
        node.away_noted = True
        text = f"node {node.rank} is {judgement.reason}"
        job.out.warn(EventReason.NODE_DISCONNECTED, text, node=node.rank)
    until = judgement.until
    if judgement.health is NodeHealth.ALIVE:
        until = liveness.next_look(until, node.heartbeat, job.now)
    job.timers.set(Timer.SILENCE, until, node.rank)


def silence_due(job: JobContext, rank: int) -> None:
    """The time to look at a node has come."""
    node = job.membership.nodes.get(rank)
    if node is not None:
        watch(job, node)


def lose(
    job: JobContext,
    node: Node,
    kind: EvidenceKind,
    text: str,
    *,
    at: float | None = None,
    pod: wire.PodObservation | None = None,
    followed: bool = False,
) -> None:
    """Forget a node that is gone. If it was in the world, that is an incident.

    followed: the next agent of its pod is there.
    """
    planned = node.rank in job.state.released or job.state.phase in OVER
    _remove(job, node, text)
    if planned:
        return
    job.out.warn(EventReason.NODE_LOST, text, node=node.rank)
    item = node.evidence(_why_lost(node, kind), text, job.now if at is None else at)
    if pod is not None:
        item = dataclasses.replace(item, exit_code=exit_code(pod), conditions=pod.conditions)
    world = job.worlds.newest
    if world is None or not world.has(node):
        report = incidents.report_gone if node.draining is None else incidents.report_late
        report(job, item, node.rank)
    elif node.rank in world.finished:
        return  # its work is done
    else:
        incidents.report_loss(job, item, world, node.rank)
    if item.kind is not EvidenceKind.NODE_REMOVED:
        _await_or_replace(job, node, text, followed=followed)
    elif node.draining is EvidenceKind.DRAINED:
        _went_early(job, node)


def _await_or_replace(job: JobContext, node: Node, text: str, *, followed: bool) -> None:
    """Wait for the container of a lost node to start again, or ask for another pod."""
    if followed or job.operator.starts_again(node.rank, node.pod_uid, node.pod_ends):
        # Its memory may lie in the pod: a new one would have to read everything from storage.
        job.timers.ensure(Timer.REJOIN, job.now + job.settings.rejoin_seconds, node.rank)
    else:
        replacement.ask(job, node.rank, node.pod_uid, text)


def _went_early(job: JobContext, node: Node) -> None:
    """A drained node is lost before it was told to leave: it stays away all the same.

    What was promised with the drain holds: its agent is not taken back when it is heard again, and
    who asked for another pod gets it.
    """
    job.out.record(node.marked(RELEASED), durable=True)
    why = node.replace_why
    if not why and not job.bounds.fit(len(job.membership.nodes.keys() - job.state.draining)):
        why = "drained, and too few are left"
    if why:
        replacement.ask(job, node.rank, node.pod_uid, why)


def _why_lost(node: Node, kind: EvidenceKind) -> EvidenceKind:
    """The evidence in a node's end: for one that was to leave, the reason to leave."""
    if node.draining is EvidenceKind.DRAINED and not node.condemned:
        # It went before the barrier: that explains what breaks in the others.
        return EvidenceKind.NODE_REMOVED
    return node.draining or kind


def _remove(job: JobContext, node: Node, text: str) -> None:
    if node.session is not None:
        job.out.put(CloseSession(node.session, RefusalCode.ABORTED, "NODE_LOST", text))
    job.membership.remove(node)
    job.touch(Change.NODE_GONE)
    shards.node_goes(job, node.rank)
    job.timers.cancel(Timer.SILENCE, Timer.MISSING, Timer.STORE_RETRY, subject=node.rank)
    totals = job.ledger.close(node.rank, job.clock.micros)
    marked = wire.NodeGoodput(node_rank=node.rank, classes=entries(totals))
    job.out.record(wire.GoodputMarked(nodes=(marked,)))
    job.out.record(wire.NodeGone(node_rank=node.rank, agent_id=node.agent_id, reason=text))
    shards.await_leaving(job)


def renew(job: JobContext, node: Node, why: str, text: str) -> None:
    """The node is to leave, and another agent of its rank to come.

    The operator is asked for it once the others go on without this one: see `reconcile`.
    """
    node.replace_why = why
    job.out.command(RENEW, node.rank, durable=True)
    drain(job, node, EvidenceKind.DRAINED, text)


def drain(job: JobContext, node: Node, kind: EvidenceKind, text: str) -> None:
    """The node is to leave at the next barrier. The first reason explains what follows."""
    if node.draining is not None:
        return
    node.draining = kind
    # A successor charges what this master would have charged.
    cause = kind.value if kind is EvidenceKind.PREEMPTED else ""
    job.out.record(node.marked(DRAINING, cause), durable=True)
    job.out.event(EventReason.NODE_DRAINING, text, node=node.rank)
    eligibility.refresh(job, node)
    job.touch(Change.NODE_DRAINING)
