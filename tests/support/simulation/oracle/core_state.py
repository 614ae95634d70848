"""Invariants of one master's core that hold after every input.

Belongs here: checks over the whole state of the core. Does not belong here: checks of messages
(`invariants`).
"""

from __future__ import annotations

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.goodput import GoodputLedger
from holdfast_master.job.state.phases import ENDED
from holdfast_master.job.state.world import World
from holdfast_wire.messages import BudgetKind, JobPhase
from simulation.oracle.invariants import Broken, require

_RUNNING = frozenset({JobPhase.STARTING, JobPhase.TRAINING, JobPhase.SAVING})


def check(job: JobContext) -> None:
    """Check every invariant.

    Raises:
        Broken: one does not hold.
    """
    waiting = ", ".join(job.changes.waiting)
    ensure(not waiting, f"the policies did not come to rest: {waiting}")
    _phases(job)
    _world(job)
    _nodes(job)
    _incidents(job)
    check_ledger(job.ledger)


def ensure(holds: bool, text: str) -> None:  # noqa: FBT001
    """Check an invariant.

    Raises:
        Broken: it does not hold.
    """
    require(holds, "core", text)


def check_ledger(ledger: GoodputLedger) -> None:
    """Check that every account's classes sum to its wall time, exactly.

    Raises:
        Broken: they do not.
    """
    for rank, account in ledger._open.items():
        wall = account.since - account.begun
        spent = account.totals.values()
        total, least = sum(spent), min(spent, default=0)
        if total == wall and least >= 0 and rank not in ledger._closed:
            continue
        ensure(total == wall, f"node {rank}: classes sum to {total}, wall time is {wall}")
        ensure(least >= 0, f"node {rank}: a class has {least} microseconds")
        ensure(rank not in ledger._closed, f"node {rank} has two accounts")


def _phases(job: JobContext) -> None:
    phase, world = job.state.phase, job.worlds.newest
    running = job.worlds.running()
    if phase in _RUNNING:
        ensure(running is not None, f"phase {phase.name} without a running world")
    if phase is JobPhase.FORMING:
        forming = world is not None and not world.assigned and not job.worlds.broken
        ensure(forming, "phase FORMING without a decided world")
    if phase is JobPhase.TRAINING:
        ensure(running is not None and running.training, "phase TRAINING, the world does not")
    if phase is JobPhase.STARTING:
        ensure(running is not None and not running.training, "phase STARTING, the world trains")
    waits = phase in ENDED | {JobPhase.WAITING, JobPhase.SUSPENDED, JobPhase.STOPPING}
    ensure(not (waits and running is not None), f"phase {phase.name} with a running world")
    saving = phase is JobPhase.SAVING
    ensure(saving or job.worlds.barrier is None, f"a barrier is on its way in phase {phase.name}")


def _world(job: JobContext) -> None:
    state, world = job.state, job.worlds.newest
    if world is None:
        return
    ensure(world.round <= state.round, f"round {world.round} is newer than {state.round}")
    _places(world)
    _replicas(job, world)
    members = world.places.keys()
    for name in ("started", "stepped", "finished"):
        ensure(getattr(world, name) <= members, f"{name} holds nodes that are no members")
    if job.worlds.running() is not world:
        return
    for rank, place in world.places.items():
        node = job.membership.nodes.get(rank)
        if node is not None and node.agent_id == place.member.agent_id:
            continue
        excused = rank in world.finished or rank in world.saved
        ensure(excused, f"member {rank} of the running world is not present")


def _places(world: World) -> None:
    """Ranks and group ranks of each world are contiguous: of each replica, where there are some."""
    for number in {place.replica.number for place in world.places.values()}:
        places = [one for one in world.places.values() if one.replica.number == number]
        sizes = [one.member.local_world_size for one in places]
        ranks = [
            one.base_rank + local
            for one, size in zip(places, sizes, strict=True)
            for local in range(size)
        ]
        if ranks != list(range(places[0].size)):
            raise Broken("core", f"ranks {ranks} are not 0 to {places[0].size - 1}")
        groups = [one.group_rank for one in places]
        if groups != list(range(places[0].nodes)):
            raise Broken("core", f"group ranks {groups} are not contiguous")
    nodes, bounds = len(world.places), world.bounds
    fits = bounds is None or bounds.fit(nodes) == nodes
    if not fits:
        raise Broken("core", f"a world of {nodes} nodes does not fit {bounds}")


def _replicas(job: JobContext, world: World) -> None:
    """Replicas are whole, in the order of their numbers, and no number is given again."""
    numbers = [one.number for one in world.replicas]
    ensure(numbers == sorted(set(numbers)), f"replicas {numbers} are not in order")
    ensure(max(numbers, default=0) <= job.state.last_replica, f"replicas {numbers} are too new")
    nodes = job.state.spec.nodes_per_replica if job.state.spec else 0
    whole = all(one.nodes == nodes for one in world.replicas)
    ensure(whole or not world.replicas, f"a replica of {world.replicas} has not {nodes} nodes")
    roster, running = job.state.roster, job.worlds.running()
    if roster is None or running is None or not running.replicas:
        return
    lost = {running.places[rank].replica.number for rank in running.disturbed}
    known = {one.number for one in running.replicas}
    live = [number for number in roster.replicas if number in known]
    ensure(not lost & set(live), f"roster {roster.replicas} has a lost replica of {lost}")


def _nodes(job: JobContext) -> None:
    roster = job.membership
    known = {rank: node.agent_id for rank, node in job.state.nodes.items()}
    present = {rank: node.agent_id for rank, node in roster.nodes.items()}
    if job.state.phase not in ENDED and known != present:
        raise Broken("core", f"nodes {present}, state {known}")
    for session, rank in roster.sessions.items():
        if roster.nodes[rank].session != session:
            raise Broken("core", f"session {session} is not node {rank}'s")
    for rank, node in roster.nodes.items():
        if (node.session is None) is not (rank in roster.away):
            raise Broken("core", f"node {rank}: away is wrong")
    ensure(roster.candidates <= present.keys(), "candidates that are not present")
    within = {rank for rank in roster.candidates if rank < job.wanted}
    ensure(job.membership.within == within, "candidates within the spec that are not counted")
    ensure(not roster.candidates & roster.away, "candidates without a stream")
    ensure(not roster.candidates & job.state.draining, "candidates that are draining")
    members = job.worlds.newest.places.keys() if job.worlds.newest else set()
    expected = {
        rank
        for rank in roster.candidates
        if rank not in members
        or (job.worlds.newest is not None and not job.worlds.newest.holds(rank, present[rank]))
    }
    if job.membership.spares != expected:
        raise Broken("core", f"spares are {job.membership.spares}, must be {expected}")


def _incidents(job: JobContext) -> None:
    state = job.state
    charged = [charge.incident_id for charge in state.charges]
    if len(charged) != len(set(charged)):
        raise Broken("core", f"an incident was charged twice: {charged}")
    for charge in state.charges:
        fact = state.incidents.get(charge.incident_id)
        ensure(fact is None or not fact.open, f"open incident {charge.incident_id} was charged")
        same = fact is None or fact.charged is charge.kind
        ensure(same, f"incident {charge.incident_id} and its charge differ")
        known = charge.kind is not BudgetKind.UNSPECIFIED
        ensure(known, f"incident {charge.incident_id}: unknown budget")
    opened = {key for key, fact in state.incidents.items() if fact.open}
    cases = {case.id for case in job.incidents.open()} | ({job.health.open_incident} - {""})
    ensure(state.phase in ENDED or opened == cases, f"open incidents {opened}, cases {cases}")
    done = state.phase in ENDED | {JobPhase.STOPPING}
    ensure(not (done and opened), f"incidents {opened} are open in phase {state.phase.name}")
