"""The newest reports of a world's ranks: their progress, and steps that no rank reports."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Membership
from holdfast_master.job.state.world import World
from holdfast_master.policies import barrier as barrier_policy
from holdfast_master.policies import guessed_steps
from holdfast_master.policies.barrier import Sighting
from holdfast_master.policies.failure import Evidence
from holdfast_wire.messages import RankProgress


def are_awaited(job: JobContext, world: World) -> bool:
    """Whether a first guess may still come.

    It may in a young world with collectives, or of a script whose steps were guessed before.
    """
    since = job.state.trains_since
    if since is None or not world.is_unseen or world.all_guessed():
        return False
    young = job.clock.job_seconds - since < job.settings.unseen_start_seconds
    seen = any(guessed_steps.is_guess(item) for item in _reports(job.membership, world))
    return young and (seen or job.state.steps_guessed)


def is_stepless(job: JobContext, world: World) -> bool:
    """Whether a world that ends had no step, as far as collectives tell."""
    state = job.state
    if not world.is_unseen or state.best_step or state.trains_since is None:
        return False
    if state.guessed_round == world.round:
        return False
    hang = job.health_policy.hang
    patience = job.settings.unseen_start_seconds
    return guessed_steps.is_stepless(
        tuple(_reports(job.membership, world)),
        guessed_before=state.steps_guessed,
        seconds=job.clock.job_seconds - state.trains_since,
        patience=patience if hang is None else max(patience, hang.first_step_seconds),
    )


def _reports(membership: Membership, world: World) -> Iterator[RankProgress]:
    """Yield the newest reports of a world's ranks."""
    for node, item in membership.reports(world.places):
        if item.round == world.round_of(node.rank):
            yield item


def reached(job: JobContext, world: World, item: Evidence) -> int:
    """The newest step: a process that ended reported it, else the ranks went on a little."""
    stood = bool(world.saved) and world.all_saved()
    if item.rank is not None or not world.training or stood:
        return world.reached
    return barrier_policy.reach(sightings(job, world), world.reached)


def sightings(job: JobContext, world: World) -> Iterator[Sighting]:
    """The last progress of every rank of the savers."""
    for node, item in job.membership.reports(world.savers):
        if guessed_steps.is_guess(item):
            continue  # it counts from 0 in each process
        yield Sighting(
            step=item.step,
            step_seconds=item.step_seconds or world.step_seconds,
            since_step_seconds=item.since_step_seconds,
            age=max(0.0, job.now - node.ranks_at),
        )
