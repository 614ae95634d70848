"""Saving what only memory has, before its nodes go (the job ends) or go apart (another world).

Belongs here: telling the nodes to write, for how long the end or the world waits, what people are
told. Does not belong here: what is worth it (`decide.rescue`), the commit (`checkpoints`).

Nothing of it is in the journal. A master that takes over hears from the agents what they hold and
what is on storage already, and begins anew where the job is to end; a world it forms at once.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_master.decide import rescue as policy
from holdfast_master.decide.rescue import Copy, Holder, Step, Stock, Verdict
from holdfast_master.job import assignments
from holdfast_master.job.checkpoint_book import Rescue
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_wire.messages import CheckpointVersion, GoodputClass, JobPhase, SaveHeld
from holdfast_wire.reasons import EventReason, PhaseReason


def for_end(desk: Desk, why: str, grace: float, latest: float | None) -> bool:
    """Whether the end of the job waits for what is in memory; begins to save it where it can.

    why: what ends it, for people. grace: SIGTERM to SIGKILL for the ranks, s. latest: when nobody
    waits any more, patient clock, s; None: that is not known.
    """
    if desk.assigned is None or desk.state.phase is JobPhase.SUSPENDED:
        return False
    if _unheard(desk):
        _hold(desk, f"{why}; a new master asks the agents what they have in memory")
        desk.timers.set(Timer.RESCUE, desk.roster.returned_at + desk.settings.adopt_seconds)
        return True
    seconds = desk.settings.rescue_seconds
    rescue = desk.checkpoints.rescue
    if rescue is not None and not rescue.ending:  # a world waited for it: the end may longer
        rescue.ending, rescue.begun, rescue.seconds = True, desk.now, seconds
    if rescue is not None and latest is not None:
        rescue.seconds = min(rescue.seconds, latest - rescue.begun)
    seconds = seconds if latest is None else min(seconds, latest - desk.now)
    return _goes_on(desk, Rescue(begun=desk.now, seconds=seconds, ending=True), why, grace)


def for_world(desk: Desk, members: tuple[Holder, ...]) -> bool:
    """Whether a world to come waits for what is in memory, because its nodes are others.

    members: its nodes in rank order; none: too few are there.
    """
    if desk.assigned is None:
        return False
    book, stock, settings = desk.checkpoints, _stock(desk), desk.settings
    nodes = desk.roster.nodes
    candidates = {(rank, nodes[rank].agent_id) for rank in desk.roster.candidates}
    most = settings.gather_ranks if _all_gather(desk, members or tuple(candidates)) else 0
    if not policy.goes_apart(stock.memory, candidates, members, most):
        _end(desk)
        return False
    seconds = policy.patience(
        stock,
        desk.assigned.step_seconds,
        least=settings.rescue_least_seconds,
        unknown=settings.boundary_seconds,
        most=settings.rescue_seconds,
    )
    if not seconds and book.rescue is None:
        return False
    new = Rescue(begun=desk.now, seconds=seconds, ending=False)
    return _goes_on(desk, new, "the next world has other nodes", 0.0)


def _all_gather(desk: Desk, members: tuple[Holder, ...]) -> bool:
    """Whether all of these agents read each other's memory."""
    hellos = [desk.roster.nodes[rank].hello for rank, _ in members]
    return all(hello is not None and hello.gathers for hello in hellos)


def _unheard(desk: Desk) -> bool:
    """Whether a member has not yet told a new master what it has in memory."""
    world, book = desk.assigned, desk.checkpoints
    if world is None or not world.fact.keeps_checkpoints:
        return False
    if desk.now >= desk.roster.returned_at + desk.settings.adopt_seconds:
        return False
    if (world.round, True) in book.rescued:
        return False
    told = book.held if book.round == world.round else {}
    return any(
        (node := desk.roster.nodes.get(rank)) is not None
        and world.holds(rank, node.agent_id)
        and rank not in told
        for rank in world.places
    )


def _stock(desk: Desk) -> Stock:
    book, fact = desk.checkpoints, desk.state.checkpoint
    return Stock(
        memory=book.memory,
        committed=fact.version if fact is not None else None,
        whole=[pending.version for pending in book.pending.values() if pending.whole],
        failed=book.failed,
    )


def _present(desk: Desk) -> Collection[Holder]:
    """Agents that have not gone; one that is away may be back in a moment."""
    nodes = desk.roster.nodes.values()
    released = desk.state.released
    return {(one.rank, one.agent_id) for one in nodes if one.rank not in released and not one.over}


def _goes_on(desk: Desk, new: Rescue, why: str, grace: float) -> bool:
    """Do what is to be done now; False: it is over, or there is nothing to do."""
    book, world = desk.checkpoints, desk.assigned
    number = world.round if world is not None else 0
    verdict = policy.decide(_stock(desk), _present(desk))
    version, over = verdict.version, (number, new.ending) in book.rescued
    if version is None or over or verdict.step is Step.LOST:
        _end(desk)
        if version is not None:
            _lost(desk, version, "nobody waits for it" if over else verdict.reason)
        return False
    if book.rescue is None:
        book.rescue = new
        _tell_begin(desk, version, verdict, why)
        _stop_ranks(desk, why, grace, ending=new.ending)
    rescue = book.rescue
    rescue.awaited = version
    if desk.now >= rescue.begun + rescue.seconds:
        book.rescued.add((number, rescue.ending))
        _end(desk)
        _lost(desk, version, f"it was not on storage within {max(0.0, rescue.seconds):.3g} s")
        return False
    if verdict.step is Step.SAVE and rescue.ordered != version:
        _order(desk, rescue, version)
    _hold(desk, f"{why}; step {version.step} is written from memory to storage first")
    desk.timers.set(Timer.RESCUE, rescue.begun + rescue.seconds)
    return True


def _hold(desk: Desk, text: str) -> None:
    desk.move(Trigger.HELD, PhaseReason.RESCUE, text)


def _tell_begin(desk: Desk, version: CheckpointVersion, verdict: Verdict, why: str) -> None:
    text = f"step {version.step} is to be on storage first: {why}; {verdict.reason}"
    desk.event(EventReason.CHECKPOINT_RESCUING, f"{text}; {_newest(desk)}")


def _newest(desk: Desk) -> str:
    fact = desk.state.checkpoint
    if fact is None or fact.version is None:
        return "storage has none"
    return f"the newest on storage is step {fact.version.step}"


def _stop_ranks(desk: Desk, why: str, grace: float, *, ending: bool) -> None:
    """What still runs of the world that ended would go on to save."""
    world = desk.assigned
    for rank in world.places if world is not None else ():
        node = desk.roster.nodes.get(rank)
        if node is not None and world is not None and world.holds(rank, node.agent_id):
            assignments.stop_round(desk, node, world.round, why, grace)
            if ending:
                desk.turn(rank, GoodputClass.WAITING)


def _order(desk: Desk, rescue: Rescue, version: CheckpointVersion) -> None:
    """Tell every holder; parts that a rank had asked for are not written twice."""
    book = desk.checkpoints
    begun = [one.attempt for one in book.pending.values() if one.version == version]
    number = desk.command("rescue", 0)
    rescue.ordered = version
    rescue.attempt = begun[0] if begun else f"h{desk.identity.epoch}c{number}"
    memory = book.memory
    for rank, _ in memory.holders if memory is not None else ():
        node = desk.roster.nodes.get(rank)
        if node is not None:
            send(desk, node)


def send(desk: Desk, node: Node) -> None:
    """Send a holder the order, again after it was away."""
    rescue, memory = desk.checkpoints.rescue, desk.checkpoints.memory
    if rescue is None or rescue.ordered is None or memory is None:
        return
    if (node.rank, node.agent_id) in memory.holders:
        desk.send(node, SaveHeld(version=rescue.ordered, attempt=rescue.attempt))


def _end(desk: Desk) -> None:
    """Nothing is waited for any more."""
    rescue, fact = desk.checkpoints.rescue, desk.state.checkpoint
    if rescue is None:
        return
    desk.checkpoints.rescue = None
    desk.timers.cancel(Timer.RESCUE)
    done = fact.version if fact is not None else None
    if done is not None and rescue.awaited is not None and done >= rescue.awaited:
        text = f"step {done.step} is on storage, {desk.now - rescue.begun:.3g} s later"
        desk.event(EventReason.CHECKPOINT_RESCUED, text)


def _lost(desk: Desk, version: CheckpointVersion, reason: str) -> None:
    """Steps that only memory had will not be on storage; said once."""
    book = desk.checkpoints
    if book.lost is not None and book.lost >= version:
        return
    book.lost = version
    text = f"step {version.step} was in memory and is lost: {reason}; {_newest(desk)}"
    desk.event(EventReason.CHECKPOINT_NOT_RESCUED, text, Warn)


def hurry(desk: Desk) -> None:
    """Somebody wants the job to end at once: memory is given up."""
    if desk.assigned is not None:
        desk.checkpoints.rescued.add((desk.assigned.round, True))
        desk.dirty = True


def memory_step(desk: Desk) -> int:
    """Newest step that is in the memory of every node of its world; 0: none that is known."""
    memory: Copy | None = desk.checkpoints.memory
    if memory is None:
        return 0
    nodes = desk.roster.nodes
    there = all(rank in nodes and nodes[rank].agent_id == agent for rank, agent in memory.holders)
    return memory.version.step if there else 0
