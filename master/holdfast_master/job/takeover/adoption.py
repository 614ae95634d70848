"""A master without a journal finds a running world: adopt it whole, or begin afresh.

Members of one world say so by the round and hash of their assignment. If all of them are back in
time, the world goes on and nobody is restarted; otherwise one fresh round follows.

Of replicas those go on that come back whole and name the newest roster. A replica that is away, was
still to be named, or missed the newest roster begins anew, as after any loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast_master.job.incidents import goodput_marks
from holdfast_master.job.nodes import eligibility
from holdfast_master.job.requests import agent_messages
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Membership
from holdfast_master.job.state.phases import Trigger
from holdfast_master.job.state.takeover_claims import Claimed, Claims
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import nodes_named
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import digests, rounds, start
from holdfast_master.policies.goodput import from_class_seconds
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason, PhaseReason


def claim(job: JobContext, hello: wire.Hello) -> int:
    """Note what a newcomer runs; the round whose processes it may keep, 0: none."""
    claims = job.claims
    if job.state.assigned is not None or claims.settled:
        return 0
    claims.keep_digest(hello.digest)
    if job.timers.running(Timer.ADOPT) and job.membership.connected() <= 1:
        # The first of them: as long as nobody can come, nobody's time runs.
        job.timers.set(Timer.ADOPT, job.now + job.settings.adopt_seconds)
    runs = sum(worker.round == hello.round for worker in hello.workers)
    known = runs + hello.ended_at_barrier
    # A world that lacks a rank cannot go on: what that rank's end meant, only its master knew.
    if hello.assignment is None or not hello.round or known < hello.local_world_size:
        return 0
    if hello.assignment.replica and not _is_named(hello.assignment):
        return 0  # it has synchronised with nobody, and nobody knows it
    if job.state.phase is not wire.JobPhase.WAITING:
        return 0
    claims.keep(hello)
    goodput_marks.bring(job, hello.node_rank, from_class_seconds(hello.goodput))
    # From the latest on: while members keep coming back, the others only wait for their turn.
    job.timers.set(Timer.ADOPT, job.now + job.settings.adopt_seconds)
    job.touch(Change.WORLD_CLAIMED)
    return hello.round


def _is_named(place: wire.WorldAssignment) -> bool:
    """Whether a replica is in the roster that its node knows."""
    roster = place.roster
    whole = roster is not None and len(roster.replicas) == len(roster.since)
    return roster is not None and whole and place.replica in roster.replicas


def pending(job: JobContext) -> str:
    """Return why no world may be formed yet; empty: it may. Adopt a claimed world that is whole."""
    claims = job.claims
    if claims.settled:
        return ""
    if not claims.hellos:
        return _maybe_more(job)
    if claims.roster is not None:
        return _pending_replicas(job, claims.roster)
    members = claims.whole()
    number, _ = claims.top
    if members is None:
        gone = _gone(job, _missing(job)) if job.operator.unreachable else []
        if gone:
            do = verb(len(gone), "does", "do")
            silent = f"{nodes_named(gone)} of round {number} {do} not answer"
            _end(job, f"{silent}; a fresh round follows")
            return ""
        count = len(claims.hellos)
        runs = f"{counted(count, 'node')} {verb(count, 'runs', 'run')} round {number}"
        return f"{runs}; waits for its other members"
    left = _left(job.membership, members)
    if _was_ended(job.claims, number):
        _end(job, f"the end of round {number} was decided; a fresh round follows")
    elif left is not None:
        _end(job, f"node {left} has left round {number} since; a fresh round follows")
    else:
        _adopt(job, members, _world_of(claims.top, members))
    return ""


def _pending_replicas(job: JobContext, roster: wire.OuterRoster) -> str:
    """Return why no world may be formed yet; adopt replicas once no other one is to be expected."""
    claims, there = job.claims, len(job.claims.hellos)
    known = job.state.spec is not None or (claims.digest is not None and claims.digest.spec)
    back = _all_back(job)
    if known and (back or there >= len(roster.replicas) * claims.size):
        found = _replicas_back(job, roster)
        if back or len(found) == len(roster.replicas):
            _adopt_replicas(job, roster, found)
            return ""
    runs = f"{counted(there, 'node')} {verb(there, 'runs', 'run')} replicas of epoch {roster.epoch}"
    return f"{runs}, in which there were {len(roster.replicas)}; waits for the others"


def _replicas_back(job: JobContext, roster: wire.OuterRoster) -> dict[int, Claimed]:
    found = job.claims.members_of(roster)
    nodes = job.membership
    return {number: one for number, one in found.items() if _left(nodes, one) is None}


def _adopt_replicas(job: JobContext, roster: wire.OuterRoster, found: dict[int, Claimed]) -> None:
    """Adopt replicas of a roster; the next epoch is without those that are not back."""
    digests.take(job)  # it may bring the spec
    sizes = {len(members) for members in found.values()}
    members = [one for members in found.values() for one in members]
    if sizes != {job.spec.nodes_per_replica} or not job.bounds.fit(len(members)):
        back = f"{len(found)} of {counted(len(roster.replicas), 'replica')}"
        _end(job, f"{back} of epoch {roster.epoch} came back, too few; a fresh round follows")
        return
    job.out.record(roster, durable=True)
    _adopt(job, members, _replicas_of(found))


def _left(membership: Membership, members: Claimed) -> int | None:
    """A member that said hello and was lost before all had; None: there is none."""
    ranks = (
        hello.node_rank
        for hello, _ in members
        if membership.agent(hello.node_rank, hello.agent_id) is None
    )
    return next(ranks, None)


def expect(job: JobContext) -> None:
    """This master follows another and has no journal: its nodes get their time to come back."""
    job.timers.ensure(Timer.ADOPT, job.now + job.settings.adopt_seconds)


def _maybe_more(job: JobContext) -> str:
    """Return why idle nodes form no world yet: those that have not come may run one."""
    if not job.timers.running(Timer.ADOPT):
        return ""
    if _all_back(job):
        if job.state.spec is not None:
            digests.take(job)
        return ""
    idle = counted(job.membership.connected(), "idle node")
    return (
        f"waits up to {job.settings.adopt_seconds:g} s for nodes that may still train under an "
        f"earlier master, of which there is no journal; {idle} connected"
    )


def _all_back(job: JobContext) -> bool:
    """Whether all nodes are back that may run the newest world: a world without is wrong.

    Those are the job's nodes, whatever surplus ones came before them, and whom a digest names.
    """
    connected = job.membership.connected()
    if connected + len(job.operator.unreachable) < job.wanted:
        return False
    missing = _missing(job)
    return not missing or bool(_gone(job, missing))


def _gone(job: JobContext, missing: set[int]) -> list[int]:
    """The missing nodes if all of them answer nothing: waiting for them is in vain.

    Where the others are too few for a world nothing is won by not waiting: the operator may err.
    """
    enough = job.state.spec is not None and job.bounds.fit(job.membership.connected()) > 0
    in_vain = enough and job.operator.connected and job.operator.unreachable.issuperset(missing)
    return sorted(missing) if in_vain else []


def _missing(job: JobContext) -> set[int]:
    """The nodes that may run the newest world and are not back."""
    digest, nodes = job.claims.digest, job.membership.nodes
    members = digest.world_members if digest is not None else ()
    expected = {*members, *range(job.wanted)}
    return {rank for rank in expected if rank not in nodes or nodes[rank].session is None}


def give_up(job: JobContext) -> None:
    """Not all members came back in time: end what runs, a fresh round follows."""
    if job.claims.settled:
        return
    if job.worlds.newest is None and not job.membership.connected():
        expect(job)
        return
    if job.claims.roster is not None:
        _adopt_replicas(job, job.claims.roster, _replicas_back(job, job.claims.roster))
        return
    number, _ = job.claims.top
    _end(job, f"not every member of round {number} came back; a fresh round follows")


def _was_ended(claims: Claims, number: int) -> bool:
    """Whether an earlier master ended this round, and was gone before it could say so."""
    digest = claims.digest
    if digest is None:
        return False
    decided = digest.fence.round if digest.fence is not None else 0
    return digest.ended_round == number or decided > number


def _end(job: JobContext, text: str) -> None:
    claims = job.claims
    digests.take(job)
    job.touch(Change.WORLD_NOT_ADOPTED)
    if not claims.hellos:
        return
    job.out.warn(EventReason.WORLD_NOT_ADOPTED, text)
    _stop_claimants(job, text)
    claims.hellos.clear()


def _stop_claimants(job: JobContext, text: str, but: Collection[int] = ()) -> None:
    """Stop what claimants run, but for these nodes'."""
    for rank, hello in sorted(job.claims.hellos.items()):
        node = job.membership.agent(rank, hello.agent_id)
        if node is not None and rank not in but:
            job.out.stop_round(node, hello.round, text)


def _adopt(job: JobContext, members: Claimed, fact: wire.WorldDecided) -> None:
    digests.take(job)
    job.out.record(fact, durable=True)
    text = f"round {fact.round} runs on {counted(len(members), 'node')} and goes on as it is"
    job.out.event(EventReason.WORLD_ADOPTED, text)
    job.move(Trigger.DECIDED, PhaseReason.WORLD_DECIDED, text)
    job.move(Trigger.ASSIGNED, PhaseReason.WORLD_ASSIGNED, text)
    world = World(fact, assigned=True)
    world.reached = max(hello.step for hello, _ in members if world.saves(hello.node_rank))
    job.worlds.adopt(world)
    _take_up_members(job, world, members)
    _stop_claimants(job, text, but=world.places)  # the others run older worlds
    job.membership.spares = job.membership.candidates - world.places.keys()
    for node in list(job.membership.nodes.values()):
        eligibility.refresh(job, node)
    job.timers.cancel(Timer.BELOW_MIN, Timer.JOIN_WINDOW)
    stepped = {hello.node_rank for hello, _ in members if hello.step}
    if world.replicas or len(stepped) == len(world.places):
        world.stepped.update(stepped)
        world.first_step = world.reached
        start.settle(job, world)
    if any(hello.barrier_id for hello, _ in members if world.saves(hello.node_rank)):
        barrier.take_up(job, world)
    job.touch(Change.WORLD_ADOPTED)


def _take_up_members(job: JobContext, world: World, members: Claimed) -> None:
    for hello, _ in members:
        start.started(job, world, hello.node_rank)
        # Some ended at a barrier; that they saved is said by messages of its own.
        gone = agent_messages.absent(hello.local_world_size, hello, hello.round)
        agent_messages.miss_soon(job, job.membership.nodes[hello.node_rank], gone)


def hold(job: JobContext) -> bool:
    """Whether claims hold the first world back; adopt a claimed world that is whole."""
    text = pending(job)
    if text:
        rounds.hold(job, PhaseReason.AWAITING_EVIDENCE, text)
        if job.state.spec is not None:  # nobody may ever come, neither old nodes nor new ones
            rounds.count_below_min(job)
    return bool(text)


def _world_of(top: tuple[int, str], members: Claimed) -> wire.WorldDecided:
    """The decision of a world from the places of its members; `top`: its round and hash."""
    _, place = members[0]
    number, digest_hash = top
    return wire.WorldDecided(
        group=0,
        round=number,
        members=tuple(_member(hello) for hello, _ in members),
        restart_count=place.restart_count,
        reason=place.reason,
        world_hash=digest_hash,
        store_host=place.store_host,
        keeps_checkpoints=place.keeps_checkpoints,
        intervals=place.intervals,
        store_port=place.store_port,
    )


def _replicas_of(found: Mapping[int, Claimed]) -> wire.WorldDecided:
    """The decision of a world of replicas, which began in rounds of their own."""
    recorded = tuple(_replica(number, members) for number, members in sorted(found.items()))
    nodes = [one for _, members in sorted(found.items()) for one in members]
    _, place = nodes[0]
    return wire.WorldDecided(
        group=0,
        round=max(one.round for one in recorded),
        members=tuple(_member(hello) for hello, _ in nodes),
        restart_count=max(one.restart_count for _, one in nodes),
        reason="replicas that an earlier master had made",
        world_hash=place.world_hash,
        store_host=place.store_host,
        store_port=place.store_port,
        keeps_checkpoints=all(one.keeps_checkpoints for _, one in nodes),
        intervals=place.intervals,
        replicas=recorded,
    )


def _replica(number: int, members: Claimed) -> wire.WorldReplica:
    hello, place = members[0]
    return wire.WorldReplica(
        number=number,
        round=hello.round,
        nodes=len(members),
        store_host=place.store_host,
        store_port=place.store_port,
        world_hash=place.world_hash,
    )


def _member(hello: wire.Hello) -> wire.WorldMember:
    return wire.WorldMember(
        node_rank=hello.node_rank,
        agent_id=hello.agent_id,
        local_world_size=hello.local_world_size,
    )
