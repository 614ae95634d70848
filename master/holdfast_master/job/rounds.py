"""Rounds: forming a world, having its store, telling every member its place, seeing it train.

Belongs here: the way of a world from its decision to its first step. Does not belong here: sizes
and order (`decide.rendezvous`), why a world ended (`incidents`, `stopping`).
"""

from __future__ import annotations

from holdfast_master.decide import rendezvous
from holdfast_master.decide.rendezvous import Attendance, Candidate, Form, Seat, Wait
from holdfast_master.job import assignments, digests, incidents, rescue, stores
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_master.job.wording import listing
from holdfast_master.job.world import World, world_hash
from holdfast_wire.messages import (
    WorldDecided,
    WorldMember,
)
from holdfast_wire.reasons import EventReason, PhaseReason


def count_window(desk: Desk) -> None:
    """Note since when there are enough nodes: a join window is counted from then.

    Also while a formation is held back, a decided world waits for its store, or the job is
    suspended: too few in between begin the window anew. A world that came to nothing does not.
    """
    if desk.world is not None and desk.world.assigned and not desk.broken:
        return
    if desk.bounds.fit(len(desk.roster.candidates)) == 0:
        desk.enough_since = None
    elif desk.enough_since is None:
        desk.enough_since = desk.now


def form(desk: Desk) -> None:
    """Form a world from the candidates, or say why not yet."""
    count_window(desk)
    present = len(desk.roster.candidates)
    held = _held(desk)
    if held:
        hold(desk, PhaseReason.AWAITING_EVIDENCE, held)
        return
    verdict = rendezvous.decide(
        Attendance(
            present=present,
            bounds=desk.bounds,
            recovering=desk.recovering,
            enough_since=desk.enough_since,
            join_window=_window(desk) if _may_grow(desk, present) else 0.0,
        ),
        desk.now,
    )
    if not isinstance(verdict, Form):
        if not rescue.for_world(desk, ()):
            _wait(desk, verdict)
    elif not desk.claims.settled:
        # What the predecessor left with the agents may say that one of them is to leave.
        digests.take(desk)
        form(desk)
    else:
        members = _arranged(desk, verdict.size)
        if not rescue.for_world(desk, tuple((m.node_rank, m.agent_id) for m in members)):
            _decide(desk, verdict, members)


def _window(desk: Desk) -> float:
    """How long a world waits for more nodes, s.

    A master without memory whose nodes tell of an earlier world does not begin the job: it waits
    for those of them that find their way to it, and not for what was lost together with its
    predecessor.
    """
    window, digest = desk.spec.join_window_seconds, desk.claims.digest
    follows = desk.state.assigned is None and digest is not None and bool(digest.world_members)
    return min(window, desk.settings.return_seconds) if follows else window


def _may_grow(desk: Desk, present: int) -> bool:
    """Whether anybody else may still come: not a node that left and that nobody makes anew.

    Nor one whose Kubernetes node answers nothing to the operator.
    """
    view = desk.operator
    if not view.connected:
        return True
    left = sum(
        rank < desk.wanted and rank not in view.replacing and rank not in desk.roster.nodes
        for rank in view.over | view.unreachable
    )
    return present + left < desk.bounds.largest


def _held(desk: Desk) -> str:
    """Why a recovery is held back; empty: it is not."""
    case = desk.case
    if case is not None and case.terminal:
        return f"the job is about to end: {case.terminal}"
    return _unsure(desk) or _awaited(desk)


def _awaited(desk: Desk) -> str:
    """Which member of the last world comes back with its memory; empty: none.

    Without it a smaller world would begin from storage, and have to grow again.
    """
    last, book = desk.assigned, desk.checkpoints
    if last is None or not (book.asked or book.held):
        return ""
    found = next((rank for rank in last.places if desk.timers.running(Timer.REJOIN, rank)), None)
    if found is None:
        return ""
    return f"the container of node {found} is started again; waits for what it has in memory"


def _unsure(desk: Desk) -> str:
    """Which member of the last world may be dead or alive; empty: none."""
    nodes, last = desk.roster.nodes, desk.assigned
    if last is None:
        return ""
    for ranks in (desk.roster.away, desk.roster.quiet):
        found = next((rank for rank in ranks if last.holds(rank, nodes[rank].agent_id)), None)
        if found is not None:
            more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
            return f"node {found}{more} may be dead or merely away; waits for a sign"
    return ""


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
        assignments.stop_survivors(desk, verdict.reason)
    hold(desk, PhaseReason.WAITING_FOR_NODES, verdict.reason)


def _arranged(desk: Desk, size: int) -> tuple[Candidate, ...]:
    """The members of a world of this size, in rank order."""
    previous = desk.state.assigned
    candidates = [desk.roster.nodes[rank].candidate for rank in desk.roster.candidates]
    unable = frozenset(
        n.node_rank for n in candidates if desk.roster.nodes[n.node_rank].store_failed
    )
    return tuple(
        rendezvous.arrange(
            [Seat(m.node_rank, m.agent_id) for m in previous.members] if previous else [],
            candidates,
            size,
            unable,
        )
    )


def _decide(desk: Desk, verdict: Form, members: tuple[Candidate, ...]) -> None:
    """Decide the round's number and write its members down."""
    state = desk.state
    number = max(state.round, desk.newest_round_seen) + 1
    told = tuple(
        WorldMember(node_rank=m.node_rank, agent_id=m.agent_id, local_world_size=m.local_world_size)
        for m in members
    )
    fact = WorldDecided(
        group=0,
        round=number,
        members=told,
        restart_count=_restarts(desk),
        reason=_why(desk, verdict.reason),
        world_hash=world_hash(desk.identity.epoch, 0, number, told),
    )
    desk.record(fact)
    desk.world, desk.broken = World(fact, desk.bounds), ""
    desk.spares = desk.roster.candidates - desk.world.places.keys()
    desk.spare_since = None
    for timer in (Timer.JOIN_WINDOW, Timer.BELOW_MIN):
        desk.timers.cancel(timer)
    names = listing([m.node_rank for m in members])
    desk.event(EventReason.WORLD_DECIDED, f"round {number}: nodes {names}; {fact.reason}")
    desk.move(Trigger.DECIDED, PhaseReason.WORLD_DECIDED, fact.reason)
    desk.timers.set(Timer.STORE, desk.now + desk.settings.store_seconds)
    desk.dirty = True


def _restarts(desk: Desk) -> int:
    """Worlds of this job before this one, also those that only a digest knows of."""
    if desk.state.assigned is not None:
        return desk.state.assigned.restart_count + 1
    digest = desk.claims.digest
    return digest.restart_count + 1 if digest is not None and digest.world_members else 0


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
        assignments.assign(desk, world, first)
    elif first.store_failed and _able(desk, world):
        incidents.break_world(desk, f"node {first.rank} has no store")
    else:
        stores.request(desk, first)


def _able(desk: Desk, world: World) -> bool:
    """Whether a member could be the first whose store has not just failed."""
    nodes = desk.roster.nodes
    return any(not nodes[rank].store_failed for rank in world.places if rank in nodes)


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
