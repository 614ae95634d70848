"""Telling every member of a decided world its place, and the others to stop.

Belongs here: assignments, and ending the processes of an older round. Does not belong here: who is
a member (`rounds`), how the world starts (`starting`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master.instructions import Send
from holdfast_master.job import charges, incidents, recovery, schedules
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    AssignmentMode,
    GoodputClass,
    PeerAddress,
    SessionResponse,
    StopRound,
    WorldAssignment,
    WorldDecided,
)
from holdfast_wire.reasons import EventReason, PhaseReason


def assign(desk: Desk, world: World, first: Node) -> None:
    """Tell every member its place. The decision is on disk before the first one hears of it."""
    store = first.store
    if store is None:
        return
    before = desk.state.assigned
    hellos = [desk.roster.nodes[rank].hello for rank in world.places]
    every = schedules.base(desk)
    fact = dataclasses.replace(
        world.fact,
        store_host=store.host,
        store_port=store.port,
        keeps_checkpoints=all(hello is not None and hello.keeps_checkpoints for hello in hellos),
        memory_every=every.memory,
        storage_every=every.storage,
    )
    world.fact, world.assigned, world.store_id = fact, True, store.store_id
    desk.assigned = world
    first.store = None
    desk.record(fact, durable=True)
    desk.move(Trigger.ASSIGNED, PhaseReason.WORLD_ASSIGNED, fact.reason)
    desk.timers.cancel(Timer.STORE)
    desk.recovering = False
    desk.enough_since = None
    recovery.note_assigned(desk, world.round)
    cap = charges.failure_limit(desk)
    for rank in world.places:
        node = desk.roster.nodes[rank]
        send_assignment(desk, node, cap)
        node.note(())
        node.saving = None
        node.stalled = False
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


def send_assignment(desk: Desk, node: Node, failure_limit: int) -> None:
    """Send a member its place in the newest world."""
    world = desk.world
    if world is None or node.session is None:
        return
    place = world.places[node.rank]
    fact = world.fact
    message = WorldAssignment(
        assignment_id=world.round,
        mode=AssignmentMode.RESTART,
        group_rank=place.group_rank,
        group_world_size=len(world.places),
        base_rank=place.base_rank,
        local_world_size=place.member.local_world_size,
        world_size=world.size,
        restart_count=fact.restart_count,
        max_restarts=failure_limit,
        store_host=fact.store_host,
        store_port=fact.store_port,
        store_id=world.store_id if place.group_rank == 0 else "",
        world_hash=fact.world_hash,
        reason=fact.reason,
        peers=_peers(desk, world, place.group_rank),
        min_nodes=desk.spec.min_replicas,
        max_nodes=desk.spec.max_replicas,
        keeps_checkpoints=fact.keeps_checkpoints,
        memory_every=fact.memory_every,
        storage_every=fact.storage_every,
        keep_last=desk.spec.keep_last,
        keep_every=desk.spec.keep_every,
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


def stop_survivors(desk: Desk, reason: str) -> None:
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


def stop_round(desk: Desk, node: Node, round_number: int, reason: str, grace: float = 0.0) -> None:
    """Have an agent end the processes of a round; grace: SIGTERM to SIGKILL, s."""
    if node.session is not None:
        number = desk.command("stop", node.rank)
        message = StopRound(command_id=number, grace_seconds=grace, reason=reason)
        desk.send(node, message, round_number)
