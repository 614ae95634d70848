"""A master without a journal finds a running world: adopt it whole, or begin afresh.

Belongs here: rebuilding what is needed from hellos and digests. Does not belong here: taking up
from a journal (`restoring`).

Members of one world say so by the round and hash of their assignment. If all of them are back in
time, the world goes on and nobody is restarted; otherwise one fresh round follows.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_master.decide.goodput import Totals, entries, micros
from holdfast_master.job import candidacy, digests, rounds, starting, stopping
from holdfast_master.job.assignments import stop_round
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_master.job.wording import listing
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    GoodputClass,
    GoodputMarked,
    Hello,
    JobPhase,
    NodeGoodput,
    WorldAssignment,
    WorldDecided,
    WorldMember,
)
from holdfast_wire.reasons import EventReason, PhaseReason


def claim(desk: Desk, hello: Hello) -> int:
    """Note what a newcomer runs; the round whose processes it may keep, 0: none."""
    claims = desk.claims
    if desk.state.assigned is not None or claims.settled:
        return 0
    claims.keep_digest(hello.digest)
    if desk.timers.running(Timer.ADOPT) and desk.roster.connected() <= 1:
        # The first of them: as long as nobody can come, nobody's time runs.
        desk.timers.set(Timer.ADOPT, desk.now + desk.settings.adopt_seconds)
    runs = sum(worker.round == hello.round for worker in hello.workers)
    known = runs + hello.ended_at_boundary
    # A world that lacks a rank cannot go on: what that rank's end meant, only its master knew.
    if hello.assignment is None or not hello.round or known < hello.local_world_size:
        return 0
    if desk.state.phase is not JobPhase.WAITING:
        return 0
    claims.keep(hello)
    _bring_goodput(desk, hello)
    # From the latest on: while members keep coming back, the others only wait for their turn.
    desk.timers.set(Timer.ADOPT, desk.now + desk.settings.adopt_seconds)
    desk.dirty = True
    return hello.round


def _bring_goodput(desk: Desk, hello: Hello) -> None:
    totals: Totals = {
        GoodputClass[item.name]: micros(item.seconds)
        for item in hello.goodput
        if item.name in GoodputClass.__members__ and 0 <= item.seconds < 1e9
    }
    if totals:
        desk.ledger.bring({hello.node_rank: totals})
        marked = NodeGoodput(node_rank=hello.node_rank, classes=entries(totals))
        desk.record(GoodputMarked(nodes=(marked,)))


def pending(desk: Desk) -> str:
    """Why no world may be formed yet; empty: it may. Adopts the claimed world once it is whole."""
    claims = desk.claims
    if claims.settled:
        return ""
    if not claims.hellos:
        return _maybe_more(desk)
    members = claims.whole()
    number, _ = claims.top
    if members is None:
        gone = _gone(desk, _missing(desk)) if desk.operator.unreachable else []
        if gone:
            text = f"nodes {listing(gone)} of round {number} do not answer; a fresh round follows"
            _end(desk, text)
            return ""
        return f"{len(claims.hellos)} nodes run round {number}; waits for its other members"
    left = _left(desk, members)
    if _was_ended(desk, number):
        _end(desk, f"the end of round {number} was decided; a fresh round follows")
    elif left is not None:
        _end(desk, f"node {left} has left round {number} since; a fresh round follows")
    else:
        _adopt(desk, members)
    return ""


def _left(desk: Desk, members: list[tuple[Hello, WorldAssignment]]) -> int | None:
    """A member that said hello and was lost before all had; None: there is none."""
    for hello, _ in members:
        node = desk.roster.nodes.get(hello.node_rank)
        if node is None or node.agent_id != hello.agent_id:
            return hello.node_rank
    return None


def expect(desk: Desk) -> None:
    """This master follows another and has no journal: its nodes get their time to come back."""
    desk.timers.ensure(Timer.ADOPT, desk.now + desk.settings.adopt_seconds)


def _maybe_more(desk: Desk) -> str:
    """Why idle nodes form no world yet: those that have not come may run one."""
    if not desk.timers.running(Timer.ADOPT):
        return ""
    if _all_back(desk):
        if desk.state.spec is not None:
            digests.take(desk)
        return ""
    return f"{desk.roster.connected()} idle nodes are back; others may run a world"


def _all_back(desk: Desk) -> bool:
    """Whether all are back who may run the newest world: a world without them may be the wrong one.

    Those are the job's nodes, whatever surplus ones came before them, and whom a digest names.
    """
    connected = desk.roster.connected()
    if connected + len(desk.operator.unreachable) < desk.wanted:
        return False
    missing = _missing(desk)
    return not missing or bool(_gone(desk, missing))


def _gone(desk: Desk, missing: set[int]) -> list[int]:
    """Who is waited for in vain: nobody else is missing, and their nodes answer nothing.

    Where the others are too few for a world nothing is won by not waiting: the operator may err.
    """
    enough = desk.state.spec is not None and desk.bounds.fit(desk.roster.connected()) > 0
    in_vain = enough and desk.operator.connected and desk.operator.unreachable.issuperset(missing)
    return sorted(missing) if in_vain else []


def _missing(desk: Desk) -> set[int]:
    """Who may run the newest world and is not back."""
    digest, nodes = desk.claims.digest, desk.roster.nodes
    members = digest.world_members if digest is not None else ()
    expected = {*members, *range(desk.wanted)}
    return {rank for rank in expected if rank not in nodes or nodes[rank].session is None}


def give_up(desk: Desk) -> None:
    """Not all members came back in time: end what runs, a fresh round follows."""
    if desk.claims.settled:
        return
    if desk.world is None and not desk.roster.connected():
        expect(desk)
        return
    number, _ = desk.claims.top
    _end(desk, f"not every member of round {number} came back; a fresh round follows")


def _was_ended(desk: Desk, number: int) -> bool:
    """Whether an earlier master ended this round, and was gone before it could say so."""
    digest = desk.claims.digest
    if digest is None:
        return False
    decided = digest.fence.round if digest.fence is not None else 0
    return digest.ended_round == number or decided > number


def _end(desk: Desk, text: str) -> None:
    claims = desk.claims
    digests.take(desk)
    desk.dirty = True
    if not claims.hellos:
        return
    desk.event(EventReason.WORLD_NOT_ADOPTED, text, Warn)
    _stop_claimants(desk, text)
    claims.hellos.clear()


def _stop_claimants(desk: Desk, text: str, but: Collection[int] = ()) -> None:
    """Stop what claimants run, but for these nodes'."""
    for rank, hello in sorted(desk.claims.hellos.items()):
        node = desk.roster.nodes.get(rank)
        if node is not None and node.agent_id == hello.agent_id and rank not in but:
            stop_round(desk, node, hello.round, text)


def _adopt(desk: Desk, members: list[tuple[Hello, WorldAssignment]]) -> None:
    digests.take(desk)
    _, place = members[0]
    number, digest_hash = desk.claims.top
    fact = WorldDecided(
        group=0,
        round=number,
        members=tuple(
            WorldMember(
                node_rank=hello.node_rank,
                agent_id=hello.agent_id,
                local_world_size=hello.local_world_size,
            )
            for hello, _ in members
        ),
        restart_count=place.restart_count,
        reason=place.reason,
        world_hash=digest_hash,
        store_host=place.store_host,
        keeps_checkpoints=place.keeps_checkpoints,
        memory_every=place.memory_every,
        storage_every=place.storage_every,
        store_port=place.store_port,
    )
    desk.record(fact, durable=True)
    text = f"round {number} runs on {len(members)} nodes and goes on as it is"
    desk.event(EventReason.WORLD_ADOPTED, text)
    desk.move(Trigger.DECIDED, PhaseReason.WORLD_DECIDED, text)
    desk.move(Trigger.ASSIGNED, PhaseReason.WORLD_ASSIGNED, text)
    world = World(fact, assigned=True)
    world.reached = max(hello.step for hello, _ in members)
    desk.world = desk.assigned = world
    for hello, _ in members:
        starting.started(desk, world, hello.node_rank)
        if not hello.workers:
            # All ended at a boundary; that they saved is said by a message of its own.
            until = desk.now + desk.settings.terminal_seconds
            desk.timers.ensure(Timer.MISSING, until, hello.node_rank)
    _stop_claimants(desk, text, but=world.places)  # the others run older worlds
    desk.spares = desk.roster.candidates - world.places.keys()
    for node in list(desk.roster.nodes.values()):
        candidacy.refresh(desk, node)
    for timer in (Timer.BELOW_MIN, Timer.JOIN_WINDOW):
        desk.timers.cancel(timer)
    if all(hello.step for hello, _ in members):
        world.stepped.update(world.places)
        world.first_step = world.reached
        starting.trains(desk, world)
    if any(hello.arm_id for hello, _ in members):
        stopping.take_up(desk, world)
    desk.dirty = True


def hold(desk: Desk) -> bool:
    """Whether claims hold the first world back; says so in the phase."""
    text = pending(desk)
    if text:
        rounds.hold(desk, PhaseReason.AWAITING_EVIDENCE, text)
    return bool(text)
