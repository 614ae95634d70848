"""Agents that say hello: new, back, taking over, or too late.

Belongs here: admitting agents, the Welcome. Does not belong here: who holds a node rank
(`decide.succession`), what a member that was away runs (`returning`).
"""

from __future__ import annotations

from holdfast_master.decide import liveness, succession
from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.decide.succession import Claim, Knowledge, Standing
from holdfast_master.inputs import Connected
from holdfast_master.instructions import CloseSession, RefusalCode
from holdfast_master.job import (
    adoption,
    candidacy,
    digests,
    ending,
    losses,
    replacements,
    rescue,
    returning,
    stores,
)
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.state import RELEASED, RENEW, REPLACED
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED
from holdfast_wire.messages import (
    GoodputClass,
    HeartbeatInterval,
    Hello,
    JobPhase,
    Leave,
    LeaveOutcome,
    NodeJoined,
    NodeMarked,
    Welcome,
)
from holdfast_wire.reasons import EventReason

_OVER = ENDED | {JobPhase.STOPPING}


def connected(desk: Desk, event: Connected) -> None:
    """An agent opened a stream and said hello."""
    hello = event.hello
    wrong = _refusal(desk, hello)
    if wrong:
        desk.event(EventReason.NODE_REFUSED, f"node {hello.node_rank}: {wrong}", Warn)
        code = RefusalCode.INVALID_ARGUMENT
        desk.put(CloseSession(event.session, code, "HELLO_REFUSED", wrong))
        return
    node = desk.roster.nodes.get(hello.node_rank)
    incumbent = None if node is None else Claim(node.pod_uid, node.agent_id)
    claim = Claim(hello.pod_uid, hello.agent_id)
    verdict = succession.decide(incumbent, claim, _knowledge(desk, hello))
    if verdict.standing is Standing.OUTDATED:
        _send_away(desk, event.session, hello, verdict.reason)
        return
    desk.newest_round_seen = max(desk.newest_round_seen, hello.round)
    desk.roster.cap(hello.max_restarts)
    if verdict.standing is Standing.RETURNED and node is not None:
        _returned(desk, node, event.session, hello)
        return
    if node is not None:
        _supersede(desk, node, verdict.reason, same_pod=node.pod_uid == hello.pod_uid)
    _joined(desk, event.session, hello)


def _refusal(desk: Desk, hello: Hello) -> str:
    """Why the agent cannot be of this job; empty: it can."""
    if hello.job_uid != desk.identity.job_uid:
        return f"job_uid {hello.job_uid!r} is another job's; this one is {desk.identity.job_uid!r}"
    if not hello.agent_id:
        return "agent_id is empty; every agent process must make a random one"
    if hello.local_world_size < 1:
        return f"local_world_size is {hello.local_world_size}; it must be at least 1"
    return ""


def _knowledge(desk: Desk, hello: Hello) -> Knowledge:
    rank = hello.node_rank
    superseded = set(desk.operator.superseded.get(rank, ()))
    replacing = desk.operator.replacing.get(rank)
    if replacing is not None:
        superseded.add(replacing.pod_uid)
    dismissed = {hello.agent_id} if hello.agent_id in desk.state.dismissed else set()
    known = desk.roster.nodes.get(rank)
    if known is not None and known.agent_id == hello.agent_id:
        dismissed = set()
    return Knowledge(
        newest_pod=desk.operator.newest_pod(rank),
        superseded=frozenset(superseded),
        ended=desk.operator.ended_pod(rank),
        dismissed=frozenset(dismissed),
    )


def _send_away(desk: Desk, session: int, hello: Hello, reason: str) -> None:
    released = desk.state.dismissed.get(hello.agent_id) == RELEASED
    outcome = LeaveOutcome.RELEASED if released else LeaveOutcome.REPLACED
    if hello.agent_id in desk.state.dismissed and desk.state.stop is not None:
        outcome = ending.outcome(desk.state.stop)
    number = desk.command("leave", hello.node_rank)
    message = Leave(command_id=number, grace_seconds=0.0, reason=reason, outcome=outcome)
    desk.send_session(session, message)
    text = f"node {hello.node_rank}, agent {hello.agent_id}, is sent away: {reason}"
    desk.event(EventReason.NODE_REFUSED, text, Warn, node=hello.node_rank)


def _supersede(desk: Desk, node: Node, reason: str, *, same_pod: bool) -> None:
    replacements.leave(desk, node, LeaveOutcome.REPLACED, reason, 0.0)
    text = f"node {node.rank}: {reason}"
    losses.lose(desk, node, EvidenceKind.AGENT_REPLACED, text, followed=same_pod)
    mark = NodeMarked(node_rank=node.rank, agent_id=node.agent_id, mark=REPLACED, value=True)
    desk.record(mark, durable=True)


def _joined(desk: Desk, session: int, hello: Hello) -> None:
    node = Node(
        rank=hello.node_rank,
        agent_id=hello.agent_id,
        pod_uid=hello.pod_uid,
        local_world_size=hello.local_world_size,
        hello=hello,
        session=session,
        last_heard=desk.now,
        disconnected_at=desk.now,
        heartbeat=desk.heartbeat,
        warm=hello.warm,
        pod_ends=desk.operator.ends_of(hello.node_rank, hello.pod_uid),
    )
    desk.roster.add(node)
    desk.record(
        NodeJoined(
            node_rank=node.rank,
            pod_uid=node.pod_uid,
            agent_id=node.agent_id,
            address=hello.address,
            local_world_size=node.local_world_size,
            host=hello.host,
        )
    )
    keeps = adoption.claim(desk, hello)
    desk.ledger.open(node.rank, GoodputClass.WAITING, desk.clock.micros)
    text = f"node {node.rank} joined from {hello.host or 'an unnamed host'}"
    desk.event(EventReason.NODE_JOINED, text, node=node.rank)
    _stretch_heartbeats(desk)
    _welcome(desk, node, keeps)
    losses.watch(desk, node)
    stores.present(desk, node, hello.store)
    candidacy.refresh(desk, node)
    digests.drain(desk, node)
    desk.dirty = True
    if desk.state.phase in _OVER:
        ending.dismiss(desk, node)


def _returned(desk: Desk, node: Node, session: int, hello: Hello) -> None:
    """The same agent on a new stream: nothing happened, unless its processes say otherwise."""
    if node.session is not None and node.session != session:
        text = f"agent {node.agent_id} opened another stream"
        desk.put(CloseSession(node.session, RefusalCode.ABORTED, "STREAM_REPLACED", text))
    desk.roster.attach(node, session)
    losses.heard(desk, node)
    if node.hello is None:
        desk.roster.returned_at = desk.now
    node.hello, node.warm = hello, node.warm or hello.warm
    if desk.state.assigned is None and not desk.claims.settled:
        # The journal knows the node and no world: its writer was lost while it was still asking.
        desk.claims.keep_digest(hello.digest)
    stores.present(desk, node, hello.store)
    if node.away_told:
        node.away_told = False
        desk.event(EventReason.NODE_RECONNECTED, f"node {node.rank} is back", node=node.rank)
    _welcome(desk, node, returning.round_to_keep(desk, node))
    losses.watch(desk, node)
    candidacy.refresh(desk, node)
    rescue.send(desk, node)
    desk.dirty = True
    if desk.state.phase in _OVER:
        ending.dismiss(desk, node)
    elif node.rank in desk.state.released:
        replacements.leave(desk, node, LeaveOutcome.RELEASED, "released", desk.stop_grace)
    else:
        returning.take_up(desk, node, hello)


def _welcome(desk: Desk, node: Node, round_number: int) -> None:
    settings = desk.settings
    rules = desk.spec.failure_rules
    node.patterns = tuple(rule.log_pattern for rule in rules if rule.log_pattern)
    node.heartbeat = desk.heartbeat
    message = Welcome(
        heartbeat_seconds=desk.heartbeat,
        lease_seconds=settings.lease_seconds,
        masterless_limit_seconds=settings.masterless_seconds,
        stop_grace_seconds=settings.stop_grace_seconds,
        log_patterns=node.patterns,
        round=round_number,
        job_name=desk.identity.job_name,
        max_replicas=desk.spec.max_replicas,
    )
    # An agent gives a stream up that begins otherwise: not even a digest goes before.
    desk.send_first(node, message)


def _stretch_heartbeats(desk: Desk) -> None:
    """A crowd is heard less often; the interval never shrinks again in one master's life."""
    settings = desk.settings
    interval = liveness.heartbeat_interval(
        len(desk.roster.nodes),
        usual=settings.heartbeat_seconds,
        longest=settings.longest_heartbeat_seconds,
        crowd=settings.crowd_nodes,
        messages_per_second=settings.crowd_messages_per_second,
    )
    if interval <= desk.heartbeat:
        return
    desk.heartbeat = interval
    for node in desk.roster.nodes.values():
        node.heartbeat = interval
        desk.send(node, HeartbeatInterval(heartbeat_seconds=interval))


def restore_nodes(desk: Desk) -> None:
    """Nodes that the journal knows are away until they say hello or their silence ends."""
    renewed = {c.node_rank for c in desk.state.commands.values() if c.kind == RENEW}
    for fact in desk.state.nodes.values():
        node = Node(
            rank=fact.node_rank,
            agent_id=fact.agent_id,
            pod_uid=fact.pod_uid,
            local_world_size=fact.local_world_size,
            hello=None,
            session=None,
            last_heard=desk.now,
            disconnected_at=desk.now,
            heartbeat=desk.heartbeat,
        )
        if fact.node_rank in desk.state.draining:
            node.draining = EvidenceKind.DRAINED
        if fact.node_rank in renewed:
            node.replace_why = "an earlier master was asked for a new agent of it"
        desk.roster.add(node)
        desk.ledger.open(node.rank, GoodputClass.WAITING, desk.clock.micros)
    # A crowd's handshakes go on side by side: it takes long until the first of them is done.
    desk.roster.returned_at = desk.now
    _stretch_heartbeats(desk)
    for node in desk.roster.nodes.values():
        node.heartbeat = desk.heartbeat
        until = desk.now + liveness.silence_limit(node.heartbeat, desk.limits)
        desk.timers.set(Timer.SILENCE, until, node.rank)
