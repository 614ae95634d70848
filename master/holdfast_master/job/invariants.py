"""What must hold after every input.

Belongs here: checks over the whole core; tests call them after each input. Does not belong here:
checks of what others send.
"""

from __future__ import annotations

from holdfast_master.job.desk import Desk
from holdfast_master.job.faults import BrokenInvariantError, ensure
from holdfast_master.job.transitions import ENDED
from holdfast_wire.messages import BudgetKind, JobPhase

_RUNNING = frozenset({JobPhase.STARTING, JobPhase.TRAINING, JobPhase.SAVING})


def check(desk: Desk) -> None:
    """Check every invariant.

    Raises:
        BrokenInvariantError: one does not hold.
    """
    ensure(not desk.dirty, "the policies did not come to rest")
    _phases(desk)
    _world(desk)
    _nodes(desk)
    _incidents(desk)
    desk.ledger.check()


def _phases(desk: Desk) -> None:
    phase, world = desk.state.phase, desk.world
    running = desk.running()
    if phase in _RUNNING:
        ensure(running is not None, f"phase {phase.name} without a running world")
    if phase is JobPhase.FORMING:
        forming = world is not None and not world.assigned and not desk.broken
        ensure(forming, "phase FORMING without a decided world")
    if phase is JobPhase.TRAINING:
        ensure(running is not None and running.training, "phase TRAINING, the world does not")
    if phase is JobPhase.STARTING:
        ensure(running is not None and not running.training, "phase STARTING, the world trains")
    waits = phase in ENDED | {JobPhase.WAITING, JobPhase.SUSPENDED, JobPhase.STOPPING}
    ensure(not (waits and running is not None), f"phase {phase.name} with a running world")
    saving = phase is JobPhase.SAVING
    ensure(saving or desk.boundary is None, f"a boundary is on its way in phase {phase.name}")


def _world(desk: Desk) -> None:
    state, world = desk.state, desk.world
    if world is None:
        return
    ensure(world.round <= state.round, f"round {world.round} is newer than {state.round}")
    bases = [place.base_rank for place in world.places.values()]
    sizes = [place.member.local_world_size for place in world.places.values()]
    ranks = [base + local for base, size in zip(bases, sizes, strict=True) for local in range(size)]
    if ranks != list(range(world.size)):
        raise BrokenInvariantError(f"ranks {ranks} are not 0 to {world.size - 1}")
    groups = [place.group_rank for place in world.places.values()]
    if groups != list(range(len(groups))):
        raise BrokenInvariantError(f"group ranks {groups} are not contiguous")
    bounds = world.bounds
    fits = bounds is None or bounds.fit(len(groups)) == len(groups)
    if not fits:
        raise BrokenInvariantError(f"a world of {len(groups)} nodes does not fit {bounds}")
    members = world.places.keys()
    for name in ("started", "stepped", "finished"):
        ensure(getattr(world, name) <= members, f"{name} holds nodes that are no members")
    if desk.running() is not world:
        return
    for rank, place in world.places.items():
        node = desk.roster.nodes.get(rank)
        if node is not None and node.agent_id == place.member.agent_id:
            continue
        excused = rank in world.finished or rank in world.saved
        ensure(excused, f"member {rank} of the running world is not present")


def _nodes(desk: Desk) -> None:
    roster = desk.roster
    known = {rank: node.agent_id for rank, node in desk.state.nodes.items()}
    present = {rank: node.agent_id for rank, node in roster.nodes.items()}
    if desk.state.phase not in ENDED and known != present:
        raise BrokenInvariantError(f"nodes {present}, state {known}")
    for session, rank in roster.sessions.items():
        if roster.nodes[rank].session != session:
            raise BrokenInvariantError(f"session {session} is not node {rank}'s")
    for rank, node in roster.nodes.items():
        if (node.session is None) is not (rank in roster.away):
            raise BrokenInvariantError(f"node {rank}: away is wrong")
    ensure(roster.candidates <= present.keys(), "candidates that are not present")
    within = {rank for rank in roster.candidates if rank < desk.wanted}
    ensure(desk.within == within, "candidates within the spec that are not counted")
    ensure(not roster.candidates & roster.away, "candidates without a stream")
    ensure(not roster.candidates & desk.state.draining, "candidates that are draining")
    members = desk.world.places.keys() if desk.world else set()
    expected = {
        rank
        for rank in roster.candidates
        if rank not in members
        or (desk.world is not None and not desk.world.holds(rank, present[rank]))
    }
    if desk.spares != expected:
        raise BrokenInvariantError(f"spares are {desk.spares}, must be {expected}")


def _incidents(desk: Desk) -> None:
    state = desk.state
    charged = [charge.incident_id for charge in state.charges]
    if len(charged) != len(set(charged)):
        raise BrokenInvariantError(f"an incident was charged twice: {charged}")
    for charge in state.charges:
        fact = state.incidents.get(charge.incident_id)
        ensure(fact is None or not fact.open, f"open incident {charge.incident_id} was charged")
        same = fact is None or fact.charged is charge.kind
        ensure(same, f"incident {charge.incident_id} and its charge differ")
        known = charge.kind is not BudgetKind.UNSPECIFIED
        ensure(known, f"incident {charge.incident_id}: unknown budget")
    opened = {key for key, fact in state.incidents.items() if fact.open}
    cases = {case.id for case in desk.open_cases()}
    ensure(state.phase in ENDED or opened == cases, f"open incidents {opened}, cases {cases}")
    done = state.phase in ENDED | {JobPhase.STOPPING}
    ensure(not (done and opened), f"incidents {opened} are open in phase {state.phase.name}")
