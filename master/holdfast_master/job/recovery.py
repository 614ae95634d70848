"""How far the recovery from an incident has come, and what it has cost.

Belongs here: the times of an incident, steps that are done again, the measured cost of a rescale.
Does not belong here: forming the world (`rounds`), charging (`charges`).
"""

from __future__ import annotations

from holdfast_master.decide.goodput import micros
from holdfast_master.job import charges
from holdfast_master.job.desk import Desk
from holdfast_master.job.timers import Timer
from holdfast_master.job.world import World
from holdfast_wire.messages import GoodputClass, WorldTraining
from holdfast_wire.reasons import EventReason

_WEIGHT = 0.3
"""Of the newest rescale in the smoothed cost."""


def note_assigned(desk: Desk, round_number: int) -> None:
    """The world that follows the incident was decided."""
    if desk.case is not None:
        desk.case.to_round = round_number
        if desk.case.decided_at is None:
            desk.case.decided_at = desk.now
        desk.record(desk.case.fact(opened=True, charged=None, cost=()))


def note_trains(desk: Desk) -> None:
    """The world that follows the incident trains: evidence still counts for a while."""
    case = desk.case
    if case is None:
        return
    case.stepped_at = desk.now
    if case.smooth and case.broken_at is not None:
        desk.rescale_cost += _WEIGHT * (desk.now - case.broken_at - desk.rescale_cost)
    desk.case = None
    desk.cooling.append(case)
    if case.planned:
        charges.close(desk, case)
        return
    desk.record(
        case.fact(opened=True, charged=None, cost=desk.ledger.cost(case.id, desk.clock.micros))
    )
    until = desk.now + desk.settings.evidence_seconds
    desk.timers.set(Timer.EVIDENCE, until, case.id)


def training_fact(world: World) -> WorldTraining:
    """That all ranks of the world have completed this step."""
    return WorldTraining(round=world.round, step=world.marked)


def count_redone(desk: Desk, world: World) -> None:
    """Work that the members had done before the incident and must do again."""
    for case in desk.open_cases():
        if case.to_round != world.round or case.steps_redone:
            continue
        if not world.first_step:
            if world.degraded and not case.smooth:
                text = "steps are unknown: the script goes on from its own checkpoint"
                desk.event(EventReason.ROLLED_BACK, text, incident=case.id)
            continue
        redone = max(0, case.reached - (world.first_step - 1))
        if redone == 0:
            continue
        case.steps_redone = redone
        lost = micros(redone * case.step_seconds)
        for member in case.members:
            desk.ledger.reclassify(
                member, lost, GoodputClass.ROLLED_BACK, desk.clock.micros, case.id
            )
        text = f"{redone} steps are done again, from step {world.first_step} on"
        desk.event(EventReason.ROLLED_BACK, text, incident=case.id)
