"""Flush: memory-only checkpoints go to storage before their nodes leave, or leave each other.

Nothing of it is in the journal. A master that takes over hears from the agents what they hold and
what is on storage already, and begins anew where the job is to end; a world it forms at once.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.checkpoints import Rescue
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Membership, Node
from holdfast_master.job.state.phases import Trigger
from holdfast_master.job.state.timers import Timer
from holdfast_master.policies import flush as policy
from holdfast_master.policies.flush import Copy, FlushStep, Holder, Stock
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason, PhaseReason


def for_end(job: JobContext, why: str, grace: float, latest: float | None) -> bool:
    """Whether the end of the job waits for memory to be flushed; begin the flush.

    why: what ends it, for people. grace: SIGTERM to SIGKILL for the ranks, s. latest: when nobody
    waits any more, patient clock, s; None: that is not known.
    """
    if job.worlds.assigned is None or job.state.phase is wire.JobPhase.SUSPENDED:
        return False
    if _unheard(job):
        _hold(job, f"{why}; a new master asks the agents what they have in memory")
        job.timers.set(Timer.RESCUE, job.membership.returned_at + job.settings.adopt_seconds)
        return True
    seconds = job.settings.rescue_seconds
    rescue = job.checkpoints.tracker.rescue
    if rescue is not None and not rescue.ending:  # a world waited for it: the end may longer
        rescue.ending, rescue.started, rescue.seconds = True, job.now, seconds
    if rescue is not None and latest is not None:
        rescue.seconds = min(rescue.seconds, latest - rescue.started)
    seconds = seconds if latest is None else min(seconds, latest - job.now)
    return _goes_on(job, Rescue(started=job.now, seconds=seconds, ending=True), why, grace)


def for_world(job: JobContext, members: tuple[Holder, ...]) -> bool:
    """Whether the next world waits for memory to be flushed: its nodes are others.

    members: its nodes in rank order; none: too few are there.
    """
    if job.worlds.assigned is None:
        return False
    tracker, settings = job.checkpoints.tracker, job.settings
    stock = _stock(job)
    nodes = job.membership.nodes
    candidates = {(rank, nodes[rank].agent_id) for rank in job.membership.candidates}
    most = settings.gather_ranks if _all_gather(job.membership, members or tuple(candidates)) else 0
    if not policy.goes_apart(stock.memory, candidates, members, most):
        _end(job)
        return False
    seconds = policy.patience(stock, job.worlds.assigned.step_seconds, settings)
    if not seconds and tracker.rescue is None:
        return False
    new = Rescue(started=job.now, seconds=seconds, ending=False)
    return _goes_on(job, new, "the next world has other nodes", 0.0)


def _all_gather(membership: Membership, members: tuple[Holder, ...]) -> bool:
    """Whether all of these agents read each other's memory."""
    hellos = [membership.nodes[rank].hello for rank, _ in members]
    return all(hello is not None and hello.gathers for hello in hellos)


def _unheard(job: JobContext) -> bool:
    """Whether a member has not yet told a new master what it has in memory."""
    world, tracker = job.worlds.assigned, job.checkpoints.tracker
    if world is None or not world.fact.keeps_checkpoints:
        return False
    if job.now >= job.membership.returned_at + job.settings.adopt_seconds:
        return False
    if (world.round, True) in tracker.rescued:
        return False
    reported = tracker.held if tracker.round == world.saver_round else {}
    return any(
        rank not in reported and job.membership.agent(rank, agent) is not None
        for rank, agent in world.holders
    )


def _stock(job: JobContext) -> Stock:
    tracker = job.checkpoints.tracker
    return Stock(
        memory=tracker.memory,
        committed=job.state.stored,
        whole=[pending.version for pending in tracker.pending.values() if pending.whole],
        failed=tracker.failed,
    )


def _present(job: JobContext) -> Collection[Holder]:
    """Agents that have not gone; one that is away may be back in a moment."""
    nodes, released = job.membership.nodes.values(), job.state.released
    return {(one.rank, one.agent_id) for one in nodes if one.rank not in released and not one.over}


def _goes_on(job: JobContext, new: Rescue, why: str, grace: float) -> bool:
    """Do what is to be done now; False: it is over, or there is nothing to do."""
    tracker, world = job.checkpoints.tracker, job.worlds.assigned
    number = world.round if world is not None else 0
    verdict = policy.decide(_stock(job), _present(job))
    version, over = verdict.version, (number, new.ending) in tracker.rescued
    if version is None or over or verdict.step is FlushStep.LOST:
        _end(job)
        if version is not None:
            _lost(job, version, "nobody waits for it" if over else verdict.reason)
        return False
    if tracker.rescue is None:
        tracker.rescue = new
        text = f"step {version.step} is to be on storage first: {why}; {verdict.reason}"
        job.out.event(EventReason.CHECKPOINT_RESCUING, f"{text}; {_newest(job.state)}")
        _stop_ranks(job, why, grace, ending=new.ending)
    rescue = tracker.rescue
    rescue.awaited = version
    if job.now >= rescue.started + rescue.seconds:
        tracker.rescued.add((number, rescue.ending))
        _end(job)
        _lost(job, version, f"it was not on storage within {max(0.0, rescue.seconds):.3g} s")
        return False
    if verdict.step is FlushStep.SAVE and rescue.ordered != version:
        _order(job, rescue, version)
    _hold(job, f"{why}; step {version.step} is written from memory to storage first")
    job.timers.set(Timer.RESCUE, rescue.started + rescue.seconds)
    return True


def _hold(job: JobContext, text: str) -> None:
    job.move(Trigger.HELD, PhaseReason.RESCUE, text)


def _newest(state: JobState) -> str:
    stored = state.stored
    return f"the newest on storage is step {stored.step}" if stored else "storage has none"


def _stop_ranks(job: JobContext, why: str, grace: float, *, ending: bool) -> None:
    """Stop the remaining ranks of the ended world: they would go on to save."""
    world = job.worlds.assigned
    for node in job.membership.present(world.places if world else ()):
        if job.stop_ranks(node, why, grace) and ending:
            job.turn(node.rank, wire.GoodputClass.WAITING)


def _order(job: JobContext, rescue: Rescue, version: wire.CheckpointVersion) -> None:
    """Tell every holder; parts that a rank had asked for are not written twice."""
    tracker = job.checkpoints.tracker
    started = [one.attempt for one in tracker.pending.values() if one.version == version]
    number = job.out.command("rescue", 0)
    rescue.ordered = version
    rescue.attempt = started[0] if started else f"h{job.identity.epoch}c{number}"
    memory = tracker.memory
    for node in job.membership.present(rank for rank, _ in (memory.holders if memory else ())):
        send(job, node)


def send(job: JobContext, node: Node) -> None:
    """Send a holder the order, again after it was away."""
    rescue, memory = job.checkpoints.tracker.rescue, job.checkpoints.tracker.memory
    if rescue is None or rescue.ordered is None or memory is None:
        return
    if (node.rank, node.agent_id) in memory.holders:
        job.out.send(node, wire.FlushToStorage(version=rescue.ordered, attempt=rescue.attempt))


def _end(job: JobContext) -> None:
    """Nothing is waited for any more."""
    rescue, done = job.checkpoints.tracker.rescue, job.state.stored
    if rescue is None:
        return
    job.checkpoints.tracker.rescue = None
    job.timers.cancel(Timer.RESCUE)
    if done is not None and rescue.awaited is not None and done >= rescue.awaited:
        text = f"step {done.step} is on storage, {job.now - rescue.started:.3g} s later"
        job.out.event(EventReason.CHECKPOINT_RESCUED, text)


def _lost(job: JobContext, version: wire.CheckpointVersion, reason: str) -> None:
    """Steps that only memory had will not be on storage; said once."""
    tracker = job.checkpoints.tracker
    if tracker.lost is not None and tracker.lost >= version:
        return
    tracker.lost = version
    # A job that ends needs its memory no more; a suspended one is to go on from there.
    wanted = tracker.memory is not None and tracker.memory.memory_only and not job.spec.suspend
    severity = wire.EventSeverity.NORMAL if wanted else wire.EventSeverity.WARNING
    what = "only" if wanted else "and is lost"
    text = f"step {version.step} was in memory {what}: {reason}; {_newest(job.state)}"
    job.out.event(EventReason.CHECKPOINT_NOT_RESCUED, text, severity)


def hurry(job: JobContext) -> None:
    """Somebody wants the job to end at once: memory is given up."""
    if job.worlds.assigned is not None:
        job.checkpoints.tracker.rescued.add((job.worlds.assigned.round, True))
        job.touch(Change.FLUSH_GIVEN_UP)


def memory_step(job: JobContext) -> int:
    """Newest step that is in the memory of every node of its world; 0: none that is known."""
    memory: Copy | None = job.checkpoints.tracker.memory
    if memory is None:
        return 0
    there = all(job.membership.agent(rank, agent) for rank, agent in memory.holders)
    return memory.version.step if there else 0
