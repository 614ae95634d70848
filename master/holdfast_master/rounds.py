"""Rounds: forming a world, having its store, telling every member its place, seeing it train.

Belongs here: the way of a world from its decision to its first step. Does not belong here: sizes
and order (`decide.rendezvous`), why a world ended (`incidents`, `rescale`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master import digests, incidents, stores
from holdfast_master.decide import rendezvous
from holdfast_master.decide.rendezvous import Attendance, Form, Seat, Wait
from holdfast_master.desk import Desk, Warn
from holdfast_master.instructions import Send
from holdfast_master.roster import Node
from holdfast_master.timers import Timer
from holdfast_master.transitions import Trigger
from holdfast_master.wording import listing
from holdfast_master.world import World, world_hash
from holdfast_wire.messages import (
    AssignmentMode,
    GoodputClass,
    JobPhase,
    PeerAddress,
    SessionResponse,
    StopRound,
    WorldAssignment,
    WorldDecided,
    WorldMember,
)
from holdfast_wire.reasons import EventReason, PhaseReason


def form(desk: Desk) -> None:
    """Form a world from the candidates, or say why not yet."""
    held = _held(desk)
    if held:
        hold(desk, PhaseReason.AWAITING_EVIDENCE, held)
        return
    present = len(desk.roster.candidates)
    if desk.bounds.fit(present) == 0:
        desk.enough_since = None
    elif desk.enough_since is None:
        desk.enough_since = desk.now
    verdict = rendezvous.decide(
        Attendance(
            present=present,
            bounds=desk.bounds,
            recovering=desk.recovering,
            enough_since=desk.enough_since,
            join_window=desk.spec.join_window_seconds,
        ),
        desk.now,
    )
    if isinstance(verdict, Form):
        _decide(desk, verdict)
    else:
        _wait(desk, verdict)


def _held(desk: Desk) -> str:
    """Why a recovery is held back; empty: it is not."""
    case = desk.case
    if case is not None and case.terminal:
        return f"the job is about to end: {case.terminal}"
    assigned = desk.state.assigned
    if assigned is None:
        return ""
    unsure = desk.roster.away | desk.roster.quiet
    if not unsure:
        return ""
    world = desk.world
    if world is None or not (desk.recovering or world.assigned):
        return ""
    members = {member.node_rank: member.agent_id for member in assigned.members}
    waits = [r for r in sorted(unsure) if members.get(r) == desk.roster.nodes[r].agent_id]
    if not waits:
        return ""
    return f"nodes {listing(waits)} may be dead or merely away; waits for a sign of them"


def hold(desk: Desk, reason: str, text: str) -> None:
    """No world can be formed now."""
    before = (desk.state.phase, desk.state.reason)
    desk.move(Trigger.HELD, reason, text)
    if before != (desk.state.phase, desk.state.reason):
        awaiting = reason == PhaseReason.AWAITING_EVIDENCE
        event = EventReason.AWAITING_EVIDENCE if awaiting else EventReason.WAITING_FOR_NODES
        desk.event(event, text)


def _wait(desk: Desk, verdict: Wait) -> None:
    if not verdict.below_minimum:
        desk.timers.cancel(Timer.BELOW_MIN)
        if verdict.until is not None:
            desk.timers.set(Timer.JOIN_WINDOW, verdict.until)
        hold(desk, PhaseReason.JOIN_WINDOW, verdict.reason)
        return
    desk.timers.cancel(Timer.JOIN_WINDOW)
    timeout = desk.spec.below_min_timeout_seconds
    desk.timers.ensure(Timer.BELOW_MIN, desk.now + timeout)
    if desk.recovering:
        desk.recovering = False
        _stop_survivors(desk, verdict.reason)
    hold(desk, PhaseReason.WAITING_FOR_NODES, verdict.reason)


def _stop_survivors(desk: Desk, reason: str) -> None:
    """Nobody goes on without the others: end what is left of the broken world."""
    assigned = desk.state.assigned
    if assigned is None:
        return
    incident = desk.case.id if desk.case else ""
    for member in assigned.members:
        node = desk.roster.nodes.get(member.node_rank)
        if node is not None and node.agent_id == member.agent_id:
            stop_round(desk, node, assigned.round, reason)
            desk.turn(node.rank, GoodputClass.WAITING, incident)


def stop_round(desk: Desk, node: Node, round_number: int, reason: str) -> None:
    """Have an agent end the processes of a round at once."""
    if node.session is not None:
        number = desk.command("stop", node.rank)
        message = StopRound(command_id=number, grace_seconds=0.0, reason=reason)
        desk.send(node, message, round_number)


def _decide(desk: Desk, verdict: Form) -> None:
    """Decide the members, their order, and the round's number."""
    state = desk.state
    previous = state.assigned
    candidates = [desk.roster.nodes[rank].candidate for rank in desk.roster.candidates]
    unable = frozenset(
        n.node_rank for n in candidates if desk.roster.nodes[n.node_rank].store_failed
    )
    members = rendezvous.arrange(
        [Seat(m.node_rank, m.agent_id) for m in previous.members] if previous else [],
        candidates,
        verdict.size,
        unable,
    )
    number = max(state.round, desk.newest_round_seen) + 1
    told = tuple(
        WorldMember(node_rank=m.node_rank, agent_id=m.agent_id, local_world_size=m.local_world_size)
        for m in members
    )
    fact = WorldDecided(
        group=0,
        round=number,
        members=told,
        restart_count=previous.restart_count + 1 if previous else 0,
        reason=_why(desk, verdict.reason),
        world_hash=world_hash(desk.identity.epoch, 0, number, told),
    )
    desk.record(fact)
    desk.world, desk.broken = World(fact), ""
    desk.spares = desk.roster.candidates - desk.world.places.keys()
    desk.spare_since = None
    for timer in (Timer.JOIN_WINDOW, Timer.BELOW_MIN):
        desk.timers.cancel(timer)
    names = listing([m.node_rank for m in members])
    desk.event(EventReason.WORLD_DECIDED, f"round {number}: nodes {names}; {fact.reason}")
    desk.move(Trigger.DECIDED, PhaseReason.WORLD_DECIDED, fact.reason)
    desk.timers.set(Timer.STORE, desk.now + desk.settings.store_seconds)
    desk.dirty = True


def _why(desk: Desk, size_reason: str) -> str:
    cause = desk.case.best.text if desk.case else desk.broken
    return f"{cause}; {size_reason}" if cause else size_reason


def advance(desk: Desk) -> None:
    """A decided world: assign it once its first node has a store."""
    world = desk.world
    if world is None or world.assigned:
        return
    first = desk.roster.nodes[world.fact.members[0].node_rank]
    if first.store is not None:
        _assign(desk, world, first)
    elif first.store_failed and desk.roster.candidates - _unable(desk):
        incidents.break_world(desk, f"node {first.rank} has no store")
    else:
        stores.request(desk, first)


def _unable(desk: Desk) -> set[int]:
    return {rank for rank in desk.roster.candidates if desk.roster.nodes[rank].store_failed}


def store_due(desk: Desk) -> None:
    """The store did not come in time: another node is to be the first."""
    world = desk.world
    if world is None or world.assigned or desk.broken:
        return
    first = desk.roster.nodes[world.fact.members[0].node_rank]
    first.store_failed, first.store_asked = True, ""
    limit = desk.settings.store_seconds
    text = f"node {first.rank} did not have a store within {limit:g} s"
    desk.event(EventReason.STORE_MISSING, text, Warn, node=first.rank)
    incidents.break_world(desk, text)


def _assign(desk: Desk, world: World, first: Node) -> None:
    """Tell every member its place. The decision is on disk before the first one hears of it."""
    store = first.store
    if store is None:
        return
    before = desk.state.assigned
    fact = dataclasses.replace(world.fact, store_host=store.host, store_port=store.port)
    world.fact, world.assigned, world.store_id = fact, True, store.store_id
    first.store = None
    desk.record(fact, durable=True)
    desk.move(Trigger.ASSIGNED, PhaseReason.WORLD_ASSIGNED, fact.reason)
    desk.timers.cancel(Timer.STORE)
    desk.recovering = False
    desk.enough_since = None
    incidents.note_assigned(desk, world.round)
    digests.place(desk)
    for place in world.places.values():
        node = desk.roster.nodes[place.member.node_rank]
        send_assignment(desk, node)
        node.ranks, node.stalled = (), False
    _turn_nodes(desk, world)
    if before is not None:
        _stop_left(desk, before, world)
    size = f"{len(world.places)} nodes, {world.size} processes"
    desk.event(EventReason.WORLD_ASSIGNED, f"round {world.round} starts: {size}")
    desk.dirty = True


def _stop_left(desk: Desk, before: WorldDecided, world: World) -> None:
    """End what runs on nodes that are not in the new world."""
    for member in before.members:
        node = desk.roster.nodes.get(member.node_rank)
        if node is not None and node.rank not in world.places:
            reason = f"round {world.round} goes on without this node"
            stop_round(desk, node, before.round, reason)


def _turn_nodes(desk: Desk, world: World) -> None:
    kind = incidents.cost_class(desk.case)
    incident = desk.case.id if desk.case else ""
    for rank in desk.roster.nodes:
        if rank in world.places:
            desk.turn(rank, kind, incident)
        else:
            desk.turn(rank, GoodputClass.WAITING)


def send_assignment(desk: Desk, node: Node) -> None:
    """Send a member its place in the newest world."""
    world = desk.world
    if world is None or node.session is None:
        return
    place = world.places[node.rank]
    fact = world.fact
    cap = incidents.failure_limit(desk)
    message = WorldAssignment(
        assignment_id=world.round,
        mode=AssignmentMode.RESTART,
        group_rank=place.group_rank,
        group_world_size=len(world.places),
        base_rank=place.base_rank,
        local_world_size=place.member.local_world_size,
        world_size=world.size,
        restart_count=fact.restart_count,
        max_restarts=cap,
        store_host=fact.store_host,
        store_port=fact.store_port,
        store_id=world.store_id if place.group_rank == 0 else "",
        world_hash=fact.world_hash,
        reason=fact.reason,
        peers=_peers(desk, world, place.group_rank),
        min_nodes=desk.spec.min_replicas,
        max_nodes=desk.spec.max_replicas,
    )
    fence = desk.fence(world.round)
    desk.put(Send(node.session, SessionResponse(fence=fence, message=message)))


def _peers(desk: Desk, world: World, group_rank: int) -> tuple[PeerAddress, ...]:
    """Up to three members that follow in the ring."""
    members = world.fact.members
    found = []
    for step in range(1, min(4, len(members))):
        rank = members[(group_rank + step) % len(members)].node_rank
        node = desk.roster.nodes.get(rank)
        if node is not None and node.hello is not None and node.hello.peer_address:
            found.append(PeerAddress(node_rank=rank, address=node.hello.peer_address))
    return tuple(found)


def started(desk: Desk, world: World, rank: int) -> None:
    """All processes of a member run."""
    if rank in world.started:
        return
    world.started.add(rank)
    if world.all_started():
        if desk.case is not None and desk.case.respawned_at is None:
            desk.case.respawned_at = desk.now
        desk.timers.set(Timer.START, desk.now + desk.settings.start_seconds)


def stepped(desk: Desk, world: World, rank: int, step: int) -> None:
    """All ranks of a member completed their first step."""
    started(desk, world, rank)
    world.stepped.add(rank)
    world.first_step = max(world.first_step, step)
    world.reached = max(world.reached, step)
    settle(desk, world)


def settle(desk: Desk, world: World) -> None:
    """Once every member has stepped or finished, the world trains."""
    if not (world.all_stepped() and world.stepped):
        return
    if not world.training:
        trains(desk, world)
    elif world.degraded:
        world.degraded = False
        world.marked = world.first_step
        incidents.count_redone(desk, world)
        desk.record(incidents.training_fact(world))


def start_due(desk: Desk) -> None:
    """All processes run for a while and no rank has an SDK: it counts as training."""
    world = desk.running()
    if world is None or world.training or world.sdk_ranks or desk.state.best_step:
        return
    world.degraded = True
    text = "no rank reports steps: progress cannot be seen, a change of size rolls back"
    desk.event(EventReason.STEPS_UNKNOWN, text)
    trains(desk, world)


def trains(desk: Desk, world: World) -> None:
    """All ranks of the world step."""
    world.training = True
    world.marked = world.first_step
    desk.timers.cancel(Timer.START)
    desk.record(incidents.training_fact(world))
    what = f"at step {world.first_step}" if world.first_step else "(steps unknown)"
    text = f"round {world.round} trains {what}"
    if desk.state.phase is JobPhase.STARTING:
        desk.move(Trigger.STEPPED, PhaseReason.TRAINING, text)
    incidents.count_redone(desk, world)
    desk.ledger.begin_world(world.places, desk.clock.micros)
    for rank in world.places:
        done = rank in world.finished
        desk.turn(rank, GoodputClass.WAITING if done else GoodputClass.PRODUCTIVE)
    desk.event(EventReason.WORLD_TRAINING, text)
    incidents.note_trains(desk)
    desk.dirty = True
