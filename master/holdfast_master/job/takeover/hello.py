"""Agents that say hello: new, back, taking over, or too late; and the Welcome."""

from __future__ import annotations

import dataclasses
import enum

from holdfast_master.inputs import Connected
from holdfast_master.instructions import CloseSession, RefusalCode
from holdfast_master.job.health import preflight
from holdfast_master.job.nodes import eligibility
from holdfast_master.job.nodes import liveness as node_liveness
from holdfast_master.job.requests import job_end
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import RELEASED, RENEW, REPLACED
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.phases import OVER
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.takeover import adoption, returning
from holdfast_master.job.worlds import digests, flush, roster, stores
from holdfast_master.policies import liveness
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.settings import CoreIdentity
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason


def connected(job: JobContext, event: Connected) -> None:
    """An agent opened a stream and said hello."""
    hello = event.hello
    wrong = _refusal(job.identity, hello)
    if wrong:
        job.out.warn(EventReason.NODE_REFUSED, f"node {hello.node_rank}: {wrong}")
        code = RefusalCode.INVALID_ARGUMENT
        job.out.put(CloseSession(event.session, code, "HELLO_REFUSED", wrong))
        return
    node = job.membership.nodes.get(hello.node_rank)
    arrival, reason = judge_arrival(node, hello, _knowledge(job, hello))
    if arrival is Arrival.OUTDATED:
        _send_away(job, event.session, hello, reason)
        return
    job.worlds.newest_round_seen = max(job.worlds.newest_round_seen, hello.round)
    roster.note_known(job, hello.assignment)
    job.membership.cap(hello.max_restarts)
    if arrival is Arrival.RETURNED and node is not None:
        _returned(job, node, event.session, hello)
        return
    if node is not None:
        _supersede(job, node, reason, same_pod=node.pod_uid == hello.pod_uid)
    if event.fence is not None:
        job.claims.followed[hello.node_rank] = event.fence.epoch
    _joined(job, event.session, hello)


def _refusal(identity: CoreIdentity, hello: wire.Hello) -> str:
    """Return why the agent cannot be of this job; empty: it can."""
    if hello.job_uid != identity.job_uid:
        return f"job_uid {hello.job_uid!r} is another job's; this one is {identity.job_uid!r}"
    if not hello.agent_id:
        return "agent_id is empty; every agent process must make a random one"
    if hello.local_world_size < 1:
        return f"local_world_size is {hello.local_world_size}; it must be at least 1"
    return ""


def _knowledge(job: JobContext, hello: wire.Hello) -> Knowledge:
    rank, view = hello.node_rank, job.operator
    replaced = rank in view.replacing and view.replacing[rank].pod_uid == hello.pod_uid
    present = job.membership.agent(rank, hello.agent_id) is not None
    return Knowledge(
        newest_pod=view.newest_pod(rank),
        superseded=replaced or hello.pod_uid in view.superseded.get(rank, ()),
        ended=view.ended_pod(rank),
        dismissed=hello.agent_id in job.state.dismissed and not present,
    )


def _send_away(job: JobContext, session: int, hello: wire.Hello, reason: str) -> None:
    state, out = job.state, job.out
    released = state.dismissed.get(hello.agent_id) == RELEASED
    outcome = wire.LeaveOutcome.RELEASED if released else wire.LeaveOutcome.REPLACED
    if hello.agent_id in state.dismissed and state.stop is not None:
        outcome = job_end.outcome(state.stop)
    number = out.command("leave", hello.node_rank)
    message = wire.Leave(command_id=number, grace_seconds=0.0, reason=reason, outcome=outcome)
    out.send_session(session, message)
    text = f"node {hello.node_rank}, agent {hello.agent_id}, is sent away: {reason}"
    out.warn(EventReason.NODE_REFUSED, text, node=hello.node_rank)


def _supersede(job: JobContext, node: Node, reason: str, *, same_pod: bool) -> None:
    job.out.leave(node, wire.LeaveOutcome.REPLACED, reason, 0.0)
    text = f"node {node.rank}: {reason}"
    node_liveness.lose(job, node, EvidenceKind.AGENT_REPLACED, text, followed=same_pod)
    job.out.record(node.marked(REPLACED), durable=True)


def _joined(job: JobContext, session: int, hello: wire.Hello) -> None:
    node = _node(job, hello, session)
    node.warm, node.pod_ends = hello.warm, job.operator.ends_of(node.rank, node.pod_uid)
    job.membership.add(node)
    fact = wire.NodeJoined(
        node_rank=node.rank,
        pod_uid=node.pod_uid,
        agent_id=node.agent_id,
        address=hello.address,
        local_world_size=node.local_world_size,
        host=hello.host,
    )
    job.out.record(fact)
    keeps = adoption.claim(job, hello)
    job.ledger.open(node.rank, wire.GoodputClass.WAITING, job.clock.micros)
    text = f"node {node.rank} joined from {hello.host or 'an unnamed host'}"
    job.out.event(EventReason.NODE_JOINED, text, node=node.rank)
    _stretch_heartbeats(job)
    _welcome(job, node, keeps)
    node_liveness.watch(job, node)
    stores.present(job.worlds, node, hello.store)
    eligibility.refresh(job, node)
    digests.drain(job, node)
    job.touch(Change.NODE_JOINED)
    if job.state.phase in OVER:
        job_end.dismiss(job, node)


def _node(job: JobContext, known: wire.Hello | wire.NodeJoined, session: int | None) -> Node:
    return Node(
        rank=known.node_rank,
        agent_id=known.agent_id,
        pod_uid=known.pod_uid,
        local_world_size=known.local_world_size,
        hello=known if isinstance(known, wire.Hello) else None,
        session=session,
        last_heard=job.now,
        disconnected_at=job.now,
        heartbeat=job.membership.heartbeat,
    )


def _returned(job: JobContext, node: Node, session: int, hello: wire.Hello) -> None:
    """The same agent on a new stream: nothing happened, unless its processes say otherwise."""
    if node.session is not None and node.session != session:
        text = f"agent {node.agent_id} opened another stream"
        job.out.put(CloseSession(node.session, RefusalCode.ABORTED, "STREAM_REPLACED", text))
    job.membership.attach(node, session)
    node.last_heard = job.now
    if node.hello is None:
        job.membership.returned_at = job.now
    node.hello, node.warm = hello, node.warm or hello.warm
    if job.state.assigned is None and not job.claims.settled:
        # The journal knows the node and no world: its writer was lost while it was still asking.
        job.claims.keep_digest(hello.digest)
    stores.present(job.worlds, node, hello.store)
    if node.away_noted:
        node.away_noted = False
        job.out.event(EventReason.NODE_RECONNECTED, f"node {node.rank} is back", node=node.rank)
    _welcome(job, node, returning.round_to_keep(job, node))
    node_liveness.watch(job, node)
    eligibility.refresh(job, node)
    preflight.repeat(job, node)
    flush.send(job, node)
    job.touch(Change.NODE_RETURNED)
    if job.state.phase in OVER:
        job_end.dismiss(job, node)
    elif node.rank in job.state.released:
        job.out.leave(node, wire.LeaveOutcome.RELEASED, "released", job.end.grace)
    else:
        returning.take_up(job, node, hello)


def welcome_again(job: JobContext) -> None:
    """Tell agents that came before the first spec what it says of health and of their exits.

    They would never learn it on this stream, and their ranks would be judged by nobody.
    """
    for node in job.membership.nodes.values():
        if node.session is not None:
            job.out.send(node, _welcome_message(job, node))


def set_policies(job: JobContext) -> None:
    """Tell agents what the spec says of health and of their exits that they were not told yet.

    Rules keep their places: an exit's report may be on its way that names them by index. One that
    is in force no longer does nothing, so that it went is no news.
    """
    health = job.spec.health
    for node in job.membership.nodes.values():
        fresh = tuple(one for one in job.spec.failure_rules if one not in node.rules)
        if node.session is not None and (fresh or node.health != health):
            node.rules, node.health = node.rules + fresh, health
            job.out.send(node, wire.SetPolicies(failure_rules=node.rules, health=health))


def _welcome(job: JobContext, node: Node, round_number: int) -> None:
    node.welcomed_round = round_number
    # An agent gives a stream up that begins otherwise: not even a digest goes before.
    job.out.send_first(node, _welcome_message(job, node))


def _welcome_message(job: JobContext, node: Node) -> wire.Welcome:
    settings = job.settings
    node.rules, node.health = job.spec.failure_rules, job.spec.health
    node.heartbeat = job.membership.heartbeat
    return wire.Welcome(
        heartbeat_seconds=job.membership.heartbeat,
        lease_seconds=settings.lease_seconds,
        masterless_limit_seconds=settings.masterless_seconds,
        stop_grace_seconds=settings.stop_grace_seconds,
        round=node.welcomed_round,
        job_name=job.identity.job_name,
        max_replicas=job.spec.max_replicas,
        failure_rules=node.rules,
        health=node.health,
    )


def _stretch_heartbeats(job: JobContext) -> None:
    """A crowd is heard less often; the interval never shrinks again in one master's life."""
    interval = liveness.heartbeat_interval(len(job.membership.nodes), job.settings)
    if interval <= job.membership.heartbeat:
        return
    job.membership.heartbeat = interval
    for node in job.membership.nodes.values():
        node.heartbeat = interval
        job.out.send(node, wire.HeartbeatInterval(heartbeat_seconds=interval))


def restore_nodes(job: JobContext) -> None:
    """Nodes that the journal knows are away until they say hello or their silence ends."""
    renewed = {c.node_rank for c in job.state.commands.values() if c.kind == RENEW}
    for fact in job.state.nodes.values():
        node = _node(job, fact, None)
        if fact.node_rank in job.state.draining:
            taken = fact.node_rank in job.state.preempted
            node.draining = EvidenceKind.PREEMPTED if taken else EvidenceKind.DRAINED
        if fact.node_rank in renewed:
            node.replace_why = "an earlier master was asked for a new agent of it"
        job.membership.add(node)
        job.ledger.open(node.rank, wire.GoodputClass.WAITING, job.clock.micros)
    # A crowd's handshakes go on side by side: it takes long until the first of them is done.
    job.membership.returned_at = job.now
    _stretch_heartbeats(job)
    for node in job.membership.nodes.values():
        node.heartbeat = job.membership.heartbeat
        until = job.now + liveness.silence_limit(node.heartbeat, job.settings)
        job.timers.set(Timer.SILENCE, until, node.rank)


class Arrival(enum.Enum):
    """The place of an agent after its hello."""

    NEW = "nobody held the rank"
    RETURNED = "the same agent is back"
    SUCCESSOR = "it takes the rank; the agent before counts as gone"
    OUTDATED = "it must leave; the rank belongs to somebody newer"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """The knowledge about a claim and its rank from the operator and from the past."""

    newest_pod: str | None = None
    """The newest pod of the rank while an operator watches; None: nobody can tell."""
    superseded: bool = False
    """The claimant's pod was followed by another."""
    ended: str | None = None
    """The rank's newest pod where its processes have ended for certain."""
    dismissed: bool = False
    """The claimant was told to leave and must not return."""


def judge_arrival(
    incumbent: Node | None, hello: wire.Hello, knowledge: Knowledge
) -> tuple[Arrival, str]:
    """Decide which agent holds the rank after this hello, and say why.

    The newest pod that the operator knows wins. Where the operator cannot tell, the newest hello
    wins.
    """
    if knowledge.dismissed:
        return Arrival.OUTDATED, "this agent was told to leave before"
    if hello.pod_uid and hello.pod_uid == knowledge.ended:
        # Its words were still on their way when its end was told.
        return Arrival.OUTDATED, f"pod {hello.pod_uid} has ended"
    if incumbent is not None and incumbent.agent_id == hello.agent_id:
        return Arrival.RETURNED, "the same agent"
    if knowledge.superseded:
        return Arrival.OUTDATED, f"pod {hello.pod_uid} was followed by a newer one"
    if incumbent is None:
        return Arrival.NEW, "nobody held the rank"
    if incumbent.pod_uid == knowledge.newest_pod != hello.pod_uid:
        text = f"the rank belongs to pod {incumbent.pod_uid}, the newest that exists"
        return Arrival.OUTDATED, text
    text = f"agent {hello.agent_id} takes the rank over from {incumbent.agent_id}"
    return Arrival.SUCCESSOR, text
