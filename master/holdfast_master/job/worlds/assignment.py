"""Telling every member of a decided world its place, and the others to stop."""

from __future__ import annotations

import dataclasses
from typing import Final

from holdfast_master.job.incidents import incidents
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.phases import Trigger
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import start, stores
from holdfast_master.policies.interval import Every, wished
from holdfast_master.policies.quantities import counted
from holdfast_wire.messages import (
    AssignmentMode,
    GoodputClass,
    MasterSpec,
    PeerAddress,
    ScheduleConfirmed,
    StorePrepared,
    WorldAssignment,
    WorldDecided,
)
from holdfast_wire.reasons import EventReason, PhaseReason
from holdfast_wire.tiers import TIERS, by_tier, to_intervals

_UNMEASURED: Final[Every] = {tier: 1 if tier is TIERS[0] else 100 for tier in TIERS}
"""Intervals before anything is measured: those of a rank without a master."""


def assign(job: JobContext, world: World) -> None:
    """Tell every member its place. The decision is on disk before the first one hears of it.

    Replicas that go on keep theirs and are told nothing here; a roster names who synchronises.
    """
    before, last = job.state.assigned, job.worlds.assigned
    fact = _with_stores(job, world, _take_stores(job, world))
    job.worlds.assigned = world
    job.out.record(fact, durable=True)
    job.move(Trigger.ASSIGNED, PhaseReason.WORLD_ASSIGNED, fact.reason)
    job.timers.cancel(Timer.STORE)
    job.worlds.recovering = False
    job.membership.enough_since = None
    incidents.note_assigned(job, world.round)
    cap = incidents.failure_limit(job)
    for rank in world.starting:
        node = job.membership.nodes[rank]
        send_assignment(job, node, cap)
        job.timers.cancel(Timer.MISSING, subject=rank)  # it was about the round before
        node.note(())
        node.saving = None
        node.stalled = False
    _turn_nodes(job, world)
    if before is not None:
        _stop_left(job, last or World(before), world)
    job.out.event(EventReason.WORLD_ASSIGNED, f"round {world.round} starts: {_starting(world)}")
    job.touch(Change.WORLD_ASSIGNED)
    start.goes_on(job, world)


def _take_stores(job: JobContext, world: World) -> dict[int, StorePrepared]:
    """Use the stores that wait for what starts of a world, and return them by replica."""
    taken = {}
    for rank in stores.hosts(world):
        node = job.membership.nodes[rank]
        if node.store is not None:
            taken[world.places[rank].replica.number] = node.store
            node.store = None
    return taken


def _with_stores(job: JobContext, world: World, taken: dict[int, StorePrepared]) -> WorldDecided:
    """The decision of a world with all that its members are told of it; it is assigned."""
    # Who has finished may be gone.
    nodes = [job.membership.nodes.get(rank) for rank in world.places]
    hellos = [node.hello for node in nodes if node is not None]
    replicas = tuple(
        dataclasses.replace(
            one, store_host=taken[one.number].host, store_port=taken[one.number].port
        )
        if one.number in taken
        else one
        for one in world.replicas
    )
    first = replicas[0] if replicas else None
    fact = dataclasses.replace(
        world.fact,
        store_host=first.store_host if first else taken[0].host,
        store_port=first.store_port if first else taken[0].port,
        keeps_checkpoints=all(hello is not None and hello.keeps_checkpoints for hello in hellos),
        intervals=to_intervals(first_intervals(job.spec, job.state.schedule)),
        replicas=replicas,
    )
    known = job.worlds.assigned.store_ids if job.worlds.assigned is not None and replicas else {}
    own = {number: store.store_id for number, store in taken.items()}
    numbers = {place.replica.number for place in world.places.values()}
    kept = {number: known[number] for number in numbers & known.keys()}
    world.assign(fact, kept | own)
    return fact


def first_intervals(spec: MasterSpec, last: ScheduleConfirmed | None) -> Every:
    """The intervals of a new world: the spec's numbers, else the ones confirmed last."""
    known = _UNMEASURED if last is None else by_tier(last.intervals)
    wish = wished(spec)
    return {tier: wish[tier] or known[tier] for tier in TIERS}


def _stop_left(job: JobContext, before: World, world: World) -> None:
    """End what runs on nodes that are not in the new world."""
    for node in job.membership.present(before.places):
        if node.rank not in world.places:
            reason = f"round {world.round} goes on without this node"
            job.out.stop_round(node, before.round_of(node.rank), reason)


def _starting(world: World) -> str:
    """The size of what starts; replicas that go on do not."""
    ranks = world.starting
    processes = sum(world.places[rank].member.local_world_size for rank in ranks)
    size = f"{counted(len(ranks), 'node')}, {counted(processes, 'process', 'processes')}"
    begin = {world.places[rank].replica.number for rank in ranks}
    going = len(world.replicas) - len(begin)
    if not world.replicas or not going:
        return size
    return f"{counted(len(begin), 'replica')}, {size}; {counted(going, 'replica')} train on"


def _turn_nodes(job: JobContext, world: World) -> None:
    kind = incidents.cost_class(job.incidents.current)
    incident = job.incidents.current_id
    starting = set(world.starting)
    for rank in job.membership.nodes:
        if rank in starting:
            job.turn(rank, kind, incident)
        elif rank not in world.places:
            job.turn(rank, GoodputClass.WAITING)


def send_assignment(job: JobContext, node: Node, failure_limit: int) -> None:
    """Send a member its place in the newest world."""
    world = job.worlds.newest
    if world is not None and node.session is not None:
        peers = _peers(job.membership, world, world.places[node.rank].index)
        message = _assignment(job.spec, world, node.rank, failure_limit, peers)
        job.out.send(node, message, world.round_of(node.rank))


def _assignment(
    spec: MasterSpec, world: World, rank: int, failure_limit: int, peers: tuple[PeerAddress, ...]
) -> WorldAssignment:
    place, fact = world.places[rank], world.fact
    replica = place.replica
    return WorldAssignment(
        assignment_id=world.round_of(rank),
        mode=AssignmentMode.RESTART,
        group_rank=place.group_rank,
        group_world_size=place.nodes,
        base_rank=place.base_rank,
        local_world_size=place.member.local_world_size,
        world_size=place.size,
        restart_count=fact.restart_count,
        max_restarts=failure_limit,
        store_host=replica.store_host,
        store_port=replica.store_port,
        store_id=world.store_ids.get(replica.number, "") if place.group_rank == 0 else "",
        replica=replica.number,
        world_hash=replica.world_hash,
        reason=fact.reason,
        peers=peers,
        min_nodes=spec.min_replicas,
        max_nodes=spec.max_replicas,
        keeps_checkpoints=fact.keeps_checkpoints,
        intervals=fact.intervals,
        checkpoint=spec.checkpoint,
    )


def _peers(membership: Membership, world: World, index: int) -> tuple[PeerAddress, ...]:
    """Up to three members that follow in the ring, of the replica where there are some."""
    members = world.fact.members
    if world.replicas:
        own = world.places[members[index].node_rank]
        first = index - own.group_rank
        members, index = members[first : first + own.nodes], own.group_rank
    found = []
    for step in range(1, min(4, len(members))):
        rank = members[(index + step) % len(members)].node_rank
        node = membership.nodes.get(rank)
        if node is not None and node.hello is not None and node.hello.peer_address:
            found.append(PeerAddress(node_rank=rank, address=node.hello.peer_address))
    return tuple(found)


def stop_survivors(job: JobContext, reason: str) -> None:
    """Nobody goes on without the others: end what is left of the broken world."""
    assigned = job.worlds.assigned
    for node in job.membership.present(assigned.places if assigned else ()):
        if job.stop_ranks(node, reason):
            job.turn(node.rank, GoodputClass.WAITING, job.incidents.current_id)
