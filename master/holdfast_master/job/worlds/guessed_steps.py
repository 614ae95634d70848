"""Guessed steps of a world whose ranks report none: its progress, and the time of its first step.

Belongs here: what the first guess changes in the world, its incident and the goodput. Does not
belong here: the judgements (`policies.guessed_steps`), steps that are reported (`start`).
"""

from __future__ import annotations

import math

from holdfast_master.job.incidents import goodput_marks, recovery
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.nodes import Node
from holdfast_master.job.state.world import World
from holdfast_master.policies import guessed_steps
from holdfast_wire.messages import BudgetKind, WorldTraining
from holdfast_wire.reasons import EventReason


def heard(job: JobContext, node: Node, world: World) -> None:
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
        recovery.recount_start(job, world, until=at)
        goodput_marks.write_if_small(job)
        text = f"round {world.round}: steps are guessed from the ranks' collectives, from 0 on"
        job.out.event(EventReason.STEPS_GUESSED, text)
    recovery.note_guessed(job, world, at)
    job.touch(Change.STEPS_REPORTED)  # newcomers have waited for it
