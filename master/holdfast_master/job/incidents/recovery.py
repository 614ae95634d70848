"""Recovery from an incident: its progress and its cost."""

from __future__ import annotations

import math

from holdfast_master.job.incidents import incidents
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import StopCost, World
from holdfast_master.policies.goodput import micros
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire.messages import GoodputClass, WorldTraining
from holdfast_wire.reasons import EventReason

_WEIGHT = 0.3
"""Weight of the newest rescale in the smoothed cost."""


def note_trains(job: JobContext, world: World) -> None:
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


def note_stepped(job: JobContext, world: World, at: float, *, guessed: bool) -> None:
    """A rank reports steps after all, or all have guessed ones since this time.

    It is that of the incident which the world follows on.
    """
    for incident in job.incidents.open():
        if incident.unseen and incident.to_round == world.round:
            incident.unseen, incident.stepped_at, incident.guessed = False, at, guessed
            if guessed:
                until = job.now + job.settings.evidence_seconds
                job.timers.set(Timer.EVIDENCE, until, incident.id)


def training_fact(world: World, *, start_seen: bool = False) -> WorldTraining:
    """The fact that all ranks of the world have completed this step."""
    return WorldTraining(round=world.round, step=world.marked, start_seen=start_seen)


def recount_start(job: JobContext, world: World, *, until: float = math.inf) -> None:
    """Count the time before the first step, which was taken for training, as the world's start.

    until: the time of the first step, where it lies in the past.
    """
    found = (incident for incident in job.incidents.open() if incident.to_round == world.round)
    incident = next(found, None)
    kind, incident_id = incidents.cost_class(incident), incident.id if incident is not None else ""
    start = max(0.0, min(until, job.now) - world.trains_since)
    amount = micros(start) if math.isfinite(until) else job.clock.micros
    for rank in world.places:
        job.ledger.reclassify(rank, amount, kind, job.clock.micros, incident_id)


def count_redone(job: JobContext, world: World) -> None:
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
