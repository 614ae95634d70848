"""A world on its way from its assignments to its first step.

Belongs here: what members report of their start, and when the world trains. Does not belong here:
forming the world (`rounds`), what an incident makes of it (`recovery`).
"""

from __future__ import annotations

from holdfast_master.job import goodput_marks, recovery
from holdfast_master.job.desk import Desk
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_master.job.world import World
from holdfast_wire.messages import GoodputClass, JobPhase
from holdfast_wire.reasons import EventReason, PhaseReason


def started(desk: Desk, world: World, rank: int) -> None:
    """All processes of a member run."""
    if rank in world.started:
        return
    world.started.add(rank)
    if world.all_started():
        if desk.case is not None and desk.case.respawned_at is None:
            desk.case.respawned_at = desk.now
        desk.timers.set(Timer.START, desk.now + desk.settings.start_seconds)


def stepped(desk: Desk, world: World, rank: int, step: int) -> None:
    """All ranks of a member completed their first step."""
    started(desk, world, rank)
    world.stepped.add(rank)
    world.first_step = max(world.first_step, step)
    world.reached = max(world.reached, step)
    settle(desk, world)


def settle(desk: Desk, world: World) -> None:
    """Once every member has stepped or finished, the world trains."""
    if not (world.all_stepped() and world.stepped):
        return
    if not world.training:
        trains(desk, world)
    elif world.degraded:
        world.degraded = False
        world.marked = world.first_step
        recovery.count_redone(desk, world)
        desk.record(recovery.training_fact(world))


def start_due(desk: Desk) -> None:
    """All processes run for a while and no rank has an SDK: it counts as training."""
    world = desk.running()
    if world is None or world.training or world.sdk_ranks or desk.state.best_step:
        return
    world.degraded = True
    text = "no rank reports steps: progress cannot be seen, a change of size rolls back"
    desk.event(EventReason.STEPS_UNKNOWN, text)
    trains(desk, world)


def trains(desk: Desk, world: World) -> None:
    """All ranks of the world step."""
    world.training = True
    world.marked = world.first_step
    desk.timers.cancel(Timer.START)
    desk.record(recovery.training_fact(world))
    what = f"at step {world.first_step}" if world.first_step else "(steps unknown)"
    text = f"round {world.round} trains {what}"
    if desk.state.phase is JobPhase.STARTING:
        desk.move(Trigger.STEPPED, PhaseReason.TRAINING, text)
    recovery.count_redone(desk, world)
    desk.ledger.begin_world(desk.clock.micros)
    for rank in world.places:
        done = rank in world.finished
        desk.turn(rank, GoodputClass.WAITING if done else GoodputClass.PRODUCTIVE)
    goodput_marks.write_if_small(desk)
    desk.event(EventReason.WORLD_TRAINING, text)
    recovery.note_trains(desk)
    desk.dirty = True
