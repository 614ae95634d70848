"""Rounds: forming a world, having its store, telling every member its place, seeing it train."""

from __future__ import annotations

from holdfast_master.job.data import shards
from holdfast_master.job.health import preflight
from holdfast_master.job.incidents import incidents
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Membership
from holdfast_master.job.state.phases import Trigger
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import nodes_named
from holdfast_master.job.state.world import World, world_hash
from holdfast_master.job.worlds import assignment, digests, flush, replicas, stores
from holdfast_master.policies import rendezvous
from holdfast_master.policies.data.ledger import groups_of
from holdfast_master.policies.flush import Holder
from holdfast_master.policies.rendezvous import Attendance, Candidate, Form, Seat, Wait
from holdfast_master.policies.replicas import SeatedReplica
from holdfast_wire.messages import WorldDecided
from holdfast_wire.reasons import EventReason, PhaseReason

_HELD_EVENTS = {
    PhaseReason.AWAITING_EVIDENCE: EventReason.AWAITING_EVIDENCE,
    PhaseReason.RESTART_BACKOFF: EventReason.RESTART_BACKOFF,
}
"""Events about a world that is not formed yet; any other reason: it waits for nodes."""
_MOST_NAMED = 20
"""Replicas that an event names."""


def count_window(job: JobContext) -> None:
    """Note since when there are enough nodes: a join window is counted from then.

    Also while a formation is held back, a decided world waits for its store, or the job is
    suspended: too few in between begin the window anew. A world that came to nothing does not.
    While a world runs, `reconcile` does not ask.
    """
    if job.bounds.fit(replicas.present(job)) == 0:
        job.membership.enough_since = None
    elif job.membership.enough_since is None:
        job.membership.enough_since = job.now


def count_below_min(job: JobContext) -> None:
    """Have the time run in which there may be fewer nodes than the least world needs."""
    if job.bounds.fit(replicas.present(job)) == 0:
        timeout = job.spec.below_min_timeout_seconds
        job.timers.ensure(Timer.BELOW_MIN, job.now + timeout)
    else:
        job.timers.cancel(Timer.BELOW_MIN)


def form(job: JobContext) -> None:
    """Form a world from the candidates, or say why not yet."""
    count_window(job)
    reason, text = _held_back(job)
    if text:
        if reason == PhaseReason.PREFLIGHT:
            job.timers.cancel(Timer.BELOW_MIN)
            job.move(Trigger.HELD, reason, text)
        else:
            hold(job, reason, text)
        return
    verdict = rendezvous.decide(_attendance(job), job.now)
    if not isinstance(verdict, Form):
        if not _waits_for_flush(job, ()):
            _wait(job, verdict)
    elif not job.claims.settled:
        # What the predecessor left with the agents may say that one of them is to leave.
        digests.take(job)
        form(job)
    else:
        _form(job, verdict)


def _form(job: JobContext, verdict: Form) -> None:
    if job.spec.nodes_per_replica:
        chosen = replicas.seated(job, verdict.size)
        members = tuple(member for replica in chosen for member in replica.members)
    else:
        chosen = ()
        members = _arranged(job, verdict.size)
    if not _waits_for_flush(job, tuple((m.node_rank, m.agent_id) for m in members)):
        _decide(job, verdict, members, chosen)


def _held_back(job: JobContext) -> tuple[str, str]:
    """The reason why no world is formed from the candidates now, and its text; or none.

    Where replicas go on nothing is waited for: they may wait for the lost one in a sync, and
    whoever comes later costs them nothing.
    """
    kept = [one.node_rank for replica in replicas.going(job) for one in replica.members]
    known = all(job.membership.nodes[rank].hello is not None for rank in kept)
    incident = job.incidents.current
    if kept and known and not (incident is not None and incident.terminal):
        return "", ""
    if text := _held(job):
        return PhaseReason.AWAITING_EVIDENCE, text
    if text := incidents.backoff_reason(job):
        return PhaseReason.RESTART_BACKOFF, text
    return PhaseReason.PREFLIGHT, preflight.holds(job)


def _waits_for_flush(job: JobContext, members: tuple[Holder, ...]) -> bool:
    """Whether memory is flushed first; the nodes that hold it may go on with it as it is.

    While a replica trains, nobody needs a checkpoint.
    """
    if replicas.going(job):
        return False
    tracker = job.checkpoints.tracker
    memory = tracker.memory
    stays = memory is None or memory.holders == members
    return not (stays and tracker.rescue is None) and flush.for_world(job, members)


def _attendance(job: JobContext) -> Attendance:
    present = replicas.present(job)
    return Attendance(
        present=present,
        bounds=job.bounds,
        recovering=job.worlds.recovering,
        enough_since=job.membership.enough_since,
        join_window=_window(job) if _may_grow(job, present) else 0.0,
        warming=_warming(job),
    )


def _window(job: JobContext) -> float:
    """The time that a world waits for more nodes, s.

    A master without memory whose nodes tell of an earlier world does not begin the job: it waits
    for those of them that find their way to it, and not for what was lost together with its
    predecessor.
    """
    window, digest = job.spec.join_window_seconds, job.claims.digest
    follows = job.state.assigned is None and digest is not None and bool(digest.world_members)
    return min(window, job.settings.return_seconds) if follows else window


def _warming(job: JobContext) -> int:
    """Nodes that have joined and are still importing what scripts need.

    From what is counted already: it is asked at each word of ten thousand nodes.
    """
    leaving = len(job.state.draining | job.state.released) + len(job.membership.surplus)
    return max(0, job.membership.connected() - len(job.membership.candidates) - leaving)


def _may_grow(job: JobContext, present: int) -> bool:
    """Whether anybody else may still come: not a node that left and that nobody makes anew.

    Nor one whose Kubernetes node answers nothing to the operator.
    """
    view = job.operator
    if not view.connected:
        return True
    left = sum(
        rank < job.wanted and rank not in view.replacing and rank not in job.membership.nodes
        for rank in view.over | view.unreachable
    )
    return present + left < job.bounds.largest


def _held(job: JobContext) -> str:
    """Return why a recovery is held back; empty: it is not."""
    incident = job.incidents.current
    if incident is not None and incident.terminal:
        return f"the job is about to end: {incident.terminal}"
    return _unsure(job) or _awaited(job)


def _awaited(job: JobContext) -> str:
    """A text about a member that comes back with its memory; empty: none does.

    Without it a smaller world would begin from storage, and have to grow again.
    """
    last, tracker = job.worlds.assigned, job.checkpoints.tracker
    if last is None or not (tracker.asked or tracker.held):
        return ""
    found = next((rank for rank in last.places if job.timers.running(Timer.REJOIN, rank)), None)
    if found is None:
        return ""
    return f"the container of node {found} is started again; waits for what it has in memory"


def _unsure(job: JobContext) -> str:
    """A text about a member of the last world that may be dead or alive; empty: none."""
    nodes, last = job.membership.nodes, job.worlds.assigned
    if last is None:
        return ""
    for ranks in (job.membership.away, job.membership.quiet):
        found = next((rank for rank in ranks if last.holds(rank, nodes[rank].agent_id)), None)
        if found is not None:
            more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
            return f"node {found}{more} may be dead or merely away; waits for a sign"
    return ""


def hold(job: JobContext, reason: str, text: str) -> None:
    """No world can be formed now."""
    before = (job.state.phase, job.state.reason)
    job.move(Trigger.HELD, reason, text)
    if before != (job.state.phase, job.state.reason):
        job.out.event(_HELD_EVENTS.get(reason, EventReason.WAITING_FOR_NODES), text)


def _wait(job: JobContext, verdict: Wait) -> None:
    if not verdict.below_minimum:
        job.timers.cancel(Timer.BELOW_MIN)
        if verdict.until is not None:
            job.timers.set(Timer.JOIN_WINDOW, verdict.until)
        hold(job, PhaseReason.JOIN_WINDOW, verdict.reason)
        return
    job.timers.cancel(Timer.JOIN_WINDOW)
    count_below_min(job)
    if job.worlds.recovering:
        job.worlds.recovering = False
        assignment.stop_survivors(job, verdict.reason)
    hold(job, PhaseReason.WAITING_FOR_NODES, verdict.reason)


def _arranged(job: JobContext, size: int) -> tuple[Candidate, ...]:
    """The members of a world of this size, in rank order."""
    previous = job.state.assigned
    candidates = [job.membership.nodes[rank].candidate for rank in job.membership.candidates]
    unable = frozenset(
        n.node_rank for n in candidates if job.membership.nodes[n.node_rank].store_failed
    )
    return tuple(
        rendezvous.arrange(
            [Seat(m.node_rank, m.agent_id) for m in previous.members] if previous else [],
            candidates,
            size,
            unable,
        )
    )


def _decide(
    job: JobContext,
    verdict: Form,
    members: tuple[Candidate, ...],
    chosen: tuple[SeatedReplica, ...],
) -> None:
    """Decide the round's number and write its members down."""
    state = job.state
    shards.flush(job)  # what readers that are lost had committed counts
    number = max(state.round, job.worlds.newest_round_seen) + 1
    recorded = tuple(replicas.as_member(one) for one in members)
    cause = job.incidents.current.best.text if job.incidents.current else job.worlds.broken
    leaving, lost = shards.left_out(
        job, [one.number for one in chosen], [one.node_rank for one in members]
    )
    fact = WorldDecided(
        replicas=replicas.recorded(job, number, chosen),
        group=0,
        round=number,
        members=recorded,
        restart_count=_restarts(job),
        reason=f"{cause}; {verdict.reason}" if cause else verdict.reason,
        world_hash=world_hash(job.identity.epoch, 0, number, recorded),
        leaving=leaving,
        lost=lost,
    )
    job.out.record(fact)
    job.data.keep_only(groups_of(fact), shards.ended_groups(job))
    shards.await_leaving(job)
    world = World(fact, job.bounds)
    job.worlds.decide(world)
    job.membership.spares = job.membership.candidates - world.places.keys()
    job.membership.spare_since = None
    job.timers.cancel(Timer.JOIN_WINDOW, Timer.BELOW_MIN)
    job.out.event(EventReason.WORLD_DECIDED, f"round {number}: {_named(world)}; {fact.reason}")
    job.move(Trigger.DECIDED, PhaseReason.WORLD_DECIDED, fact.reason)
    job.timers.set(Timer.STORE, job.now + job.settings.store_seconds)
    job.touch(Change.WORLD_DECIDED)


def _named(world: World) -> str:
    """The members in words, by replica where there are some."""
    if not world.replicas:
        return nodes_named(list(world.places))
    parts = [
        f"replica {one.number} on {nodes_named(list(world.members_of(one)))}"
        + ("" if one.round == world.round else " goes on")
        for one in world.replicas[:_MOST_NAMED]
    ]
    more = len(world.replicas) - _MOST_NAMED
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def _restarts(job: JobContext) -> int:
    """Worlds of this job before this one, also those that only a digest knows of."""
    if job.state.assigned is not None:
        return job.state.assigned.restart_count + 1
    digest = job.claims.digest
    return digest.restart_count + 1 if digest is not None and digest.world_members else 0


def advance(job: JobContext) -> None:
    """A decided world: assign it once its first node has a store."""
    world = job.worlds.newest
    if world is None or world.assigned:
        return
    world.awaits_stores = set()
    for rank in stores.hosts(world):
        first = job.membership.nodes[rank]
        if first.store is not None:
            continue
        if first.store_failed and _able(job.membership, world, rank):
            incidents.break_world(job, f"node {first.rank} has no store")
            return
        stores.request(job, first)
        world.awaits_stores.add(rank)
    if not world.awaits_stores:
        assignment.assign(job, world)


def _able(membership: Membership, world: World, first: int) -> bool:
    """Whether another member could be in the first's place: its store has not failed."""
    nodes = membership.nodes
    members = world.members_of(world.places[first].replica)
    return any(not nodes[rank].store_failed for rank in members if rank in nodes)


def store_due(job: JobContext) -> None:
    """The store did not come in time: another node is to be the first."""
    world = job.worlds.newest
    if world is None or world.assigned or job.worlds.broken:
        return
    limit, text = job.settings.store_seconds, ""
    for first in (job.membership.nodes[rank] for rank in stores.hosts(world)):
        if first.store is not None:
            continue
        first.store_failed, first.store_asked = True, ""
        text = f"node {first.rank} did not have a store within {limit:g} s"
        job.out.warn(EventReason.STORE_MISSING, text, node=first.rank)
    incidents.break_world(job, text)
