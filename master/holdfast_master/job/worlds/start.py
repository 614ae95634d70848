"""A world on its way from its assignments to its first step, and what the way has cost."""

from __future__ import annotations

import math

from holdfast_master.job.incidents import goodput_marks, incidents
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.phases import Trigger
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import StopCost, World
from holdfast_master.job.worlds import roster
from holdfast_master.policies import guessed_steps
from holdfast_master.policies.goodput import micros
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire.messages import BudgetKind, GoodputClass, JobPhase, WorldTraining
from holdfast_wire.reasons import EventReason, PhaseReason

_WEIGHT = 0.3
"""Weight of the newest rescale in the smoothed cost."""


def started(job: JobContext, world: World, rank: int) -> None:
    """All processes of a member run."""
    if rank in world.started:
        return
    world.started.add(rank)
    _watch(job, world)


def goes_on(job: JobContext, world: World) -> None:
    """Some replicas of a world that is assigned have started long before, or all."""
    if world.started:
        _watch(job, world)
        settle(job, world)


def _watch(job: JobContext, world: World) -> None:
    """Once all members run, wait for their first steps."""
    if world.all_started():
        if job.incidents.current is not None and job.incidents.current.respawned_at is None:
            job.incidents.current.respawned_at = job.now
        job.timers.set(Timer.START, job.now + _unseen_seconds(job))


def _unseen_seconds(job: JobContext) -> float:
    """Return how long ranks may run without a word of the SDK, s: two heartbeats at least."""
    return max(job.settings.start_seconds, 2 * job.membership.heartbeat)


def stepped(job: JobContext, world: World, rank: int, step: int) -> None:
    """All ranks of a member completed their first step."""
    started(job, world, rank)
    world.stepped.add(rank)
    if world.saves(rank) or not world.first_step:
        world.first_step = max(world.first_step, step)
    if world.saves(rank):
        world.reached = max(world.reached, step)
    settle(job, world)


def settle(job: JobContext, world: World) -> None:
    """Once every member has stepped or finished, the world trains."""
    if not (world.all_stepped() and world.stepped):
        return
    if not world.training:
        trains(job, world)
    elif world.degraded:
        _see(job, world)


def _see(job: JobContext, world: World) -> None:
    """Take the first step of a world that counts as training already."""
    world.degraded = False
    world.marked = world.first_step
    # Who attaches the SDK much later has trained unseen: nobody knows which of it was the start.
    late = min(world.sdk_since, job.now) - world.trains_since
    start_seen = late <= job.settings.unseen_start_seconds
    if start_seen:
        _recount_start(job, world)
    _note_stepped(job, world, job.now, guessed=False)
    _count_redone(job, world)
    if world.replicas:
        roster.note_alone(job, world)
    fact = WorldTraining(round=world.round, step=world.marked, start_seen=start_seen)
    job.out.record(fact)
    goodput_marks.write_if_small(job)
    text = f"round {world.round}: all ranks report steps now, from step {world.first_step} on"
    job.out.event(EventReason.STEPS_REPORTED, text)
    job.touch(Change.STEPS_REPORTED)  # newcomers have waited for it


def start_due(job: JobContext) -> None:
    """All processes run for a while and no rank has an SDK: it counts as training."""
    world = job.worlds.running()
    if world is None or world.training or world.sdk_ranks or job.state.best_step:
        return
    world.degraded = True
    job.out.event(EventReason.STEPS_UNKNOWN, _unknown(job, world))
    trains(job, world)


def _unknown(job: JobContext, world: World) -> str:
    costs = "its steps are guessed from its collectives, if it has any; a change of size rolls back"
    members = job.membership.present(world.places)
    if any(node.hello and node.hello.unmanaged for node in members):
        return f"no rank reports steps: {costs}; steps can be reported where holdfast-run starts it"
    return (
        f"no rank has called holdfast.init() in the first {_unseen_seconds(job):g} s: until one "
        f"does, {costs}; call it before long imports and loading"
    )


def trains(job: JobContext, world: World) -> None:
    """All ranks of the world step."""
    world.training = True
    world.trains_since = job.now
    world.marked = world.first_step
    job.timers.cancel(Timer.START)
    job.out.record(WorldTraining(round=world.round, step=world.marked))
    text = _trains_text(world)
    if job.state.phase is JobPhase.STARTING:
        job.move(Trigger.STEPPED, PhaseReason.TRAINING, text)
    _count_redone(job, world)
    job.ledger.begin_world(job.clock.micros)
    for rank in world.starting:  # what replicas do that went on, is known
        done = rank in world.finished
        job.turn(rank, GoodputClass.WAITING if done else GoodputClass.PRODUCTIVE)
    goodput_marks.write_if_small(job)
    job.out.event(EventReason.WORLD_TRAINING, text)
    if world.replicas and not world.degraded:
        roster.note_alone(job, world)
    _note_trains(job, world)
    job.touch(Change.WORLD_TRAINS)


def _trains_text(world: World) -> str:
    begin = len({world.places[rank].replica.number for rank in world.starting})
    if 0 < begin < len(world.replicas):
        more = counted(begin, "new replica")
        return f"round {world.round}: {more} {verb(begin, 'trains', 'train')}, as others did before"
    what = f"at step {world.first_step}" if world.first_step else "(steps unknown)"
    return f"round {world.round} trains {what}"


def guessed(job: JobContext, node: Node, world: World) -> None:
    """Take up a member's guessed steps, once the world counts as training."""
    if not world.is_unseen:
        return
    if any(guessed_steps.is_guess(item) and item.step for item in node.ranks):
        _note_progress(job, world)
    if node.rank in world.guessed or len(node.ranks) < node.local_world_size:
        return
    age = guessed_steps.first_step_age(node.ranks)
    if age is None:
        return
    world.guessed[node.rank] = job.now - age
    if world.all_guessed():
        _note_first_step(job, world)


def _note_progress(job: JobContext, world: World) -> None:
    """Write the first guess down: no-progress charges end there."""
    spent = any(charge.kind is BudgetKind.NO_PROGRESS for charge in job.state.charges)
    known = job.state.guessed_round == world.round
    if known and (not spent or job.incidents.open()):
        return
    job.out.record(WorldTraining(round=world.round, guessed=True))


def _note_first_step(job: JobContext, world: World) -> None:
    """Count the time before the first step of all ranks as the world's start."""
    at = max(world.guessed.values(), default=job.now)
    if math.isfinite(world.trains_since):  # else an earlier master has seen it
        if world.replicas:
            roster.note_alone(job, world)
        _recount_start(job, world, until=at)
        goodput_marks.write_if_small(job)
        text = f"round {world.round}: steps are guessed from the ranks' collectives, from 0 on"
        job.out.event(EventReason.STEPS_GUESSED, text)
    _note_stepped(job, world, at, guessed=True)
    job.touch(Change.STEPS_REPORTED)  # newcomers have waited for it


# ----------------------------------------------------------- the incident that the world follows on


def _note_trains(job: JobContext, world: World) -> None:
    """The world that follows the incident trains: evidence still counts for a while."""
    incident = job.incidents.current
    if incident is None:
        return
    incident.unseen = world.degraded
    incident.stepped_at = None if world.degraded else job.now
    if incident.smooth and incident.broken_at is not None:
        pause, known = job.now - incident.broken_at, job.worlds
        weight = _WEIGHT if known.rescales_measured else 1.0
        known.rescale_cost += weight * (pause - known.rescale_cost)
        known.rescales_measured = True
    job.incidents.cool(incident)
    if incident.planned:
        incidents.close(job, incident)
        return
    job.out.record(incident.fact(cost=job.ledger.cost(incident.id, job.clock.micros)))
    until = job.now + job.settings.evidence_seconds
    job.timers.set(Timer.EVIDENCE, until, incident.id)


def _note_stepped(job: JobContext, world: World, at: float, *, guessed: bool) -> None:
    """A rank reports steps after all, or all have guessed ones since this time.

    It is that of the incident which the world follows on.
    """
    for incident in job.incidents.open():
        if incident.unseen and incident.to_round == world.round:
            incident.unseen, incident.stepped_at, incident.guessed = False, at, guessed
            if guessed:
                until = job.now + job.settings.evidence_seconds
                job.timers.set(Timer.EVIDENCE, until, incident.id)


def _recount_start(job: JobContext, world: World, *, until: float = math.inf) -> None:
    """Count the time before the first step, which was taken for training, as the world's start.

    until: the time of the first step, where it lies in the past.
    """
    found = (incident for incident in job.incidents.open() if incident.to_round == world.round)
    incident = next(found, None)
    kind, incident_id = incidents.cost_class(incident), incident.id if incident is not None else ""
    start = max(0.0, min(until, job.now) - world.trains_since)
    amount = micros(start) if math.isfinite(until) else job.clock.micros
    for rank in world.starting:  # replicas that went on have trained meanwhile
        job.ledger.reclassify(rank, amount, kind, job.clock.micros, incident_id)


def _count_redone(job: JobContext, world: World) -> None:
    """Work that the members had done before the incident and must do again."""
    for incident in job.incidents.open():
        if incident.to_round != world.round or incident.steps_redone:
            continue
        if len(world.starting) < len(world.places):
            continue  # a new replica is given the others' steps
        if not world.first_step:
            if world.degraded and not incident.smooth:
                text = "steps are unknown: the script goes on from its own checkpoint"
                job.out.event(EventReason.ROLLED_BACK, text, incident=incident.id)
            continue
        redone = max(0, incident.reached - (world.first_step - 1))
        if incident.smooth:
            job.worlds.last_stop = StopCost(redone, whole=world.first_step <= incident.began)
        if redone == 0:
            continue
        incident.steps_redone = redone
        lost = micros(redone * incident.step_seconds)
        for member in incident.members:
            job.ledger.reclassify(
                member, lost, GoodputClass.ROLLED_BACK, job.clock.micros, incident.id
            )
        steps = f"{counted(redone, 'step')} {verb(redone, 'is', 'are')}"
        text = f"{steps} done again, from step {world.first_step} on"
        job.out.event(EventReason.ROLLED_BACK, text, incident=incident.id)
