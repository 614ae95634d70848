"""Exclusion of slow nodes from the running world, where `spec.health.straggler.mode` is Act.

A node leaves as by every drain, with or without a standby: all ranks save and stop after the same
step.
"""

from __future__ import annotations

import itertools
from typing import Final

from holdfast_master.job.health import stragglers, trials
from holdfast_master.job.nodes import liveness, rule_actions
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.world import World
from holdfast_master.policies.quantities import counted
from holdfast_master.policies.straggler import exclusion
from holdfast_master.policies.straggler.exclusion import Exclude, NoExclusion, Prospects
from holdfast_wire.messages import HealthMode, JobPhase
from holdfast_wire.reasons import EventReason

AGAIN_SECONDS: Final = 5.0
"""Between two looks at nodes that stay: gains and costs change slowly."""


def consider(job: JobContext, world: World) -> None:
    """Have the slow nodes leave for which that pays; where it does not, say so once."""
    policy = job.straggler_policy
    if policy is None or policy.mode is not HealthMode.ACT:
        return
    slow = job.health.slow
    accused = stragglers.accused_nodes(slow)
    if not accused or not _is_free(job, world):
        return
    if accused in job.health.kept and job.now < job.health.considered_at + AGAIN_SECONDS:
        return  # nothing is new, and thousands of samples come in that time
    job.health.considered_at = job.now
    found = exclusion.decide(slow, _prospects(job, world))
    if isinstance(found, NoExclusion):
        _keep(job, accused, found)
    else:
        _exclude(job, world, found)


def _is_free(job: JobContext, world: World) -> bool:
    """Whether the world trains, and nothing is about to change it."""
    changes = job.worlds.barrier is not None or job.incidents.current is not None
    leaves = bool(job.state.draining & world.places.keys())
    ends = job.state.stop is not None or job.spec.suspend or bool(world.finished)
    return job.state.phase is JobPhase.TRAINING and not (changes or leaves or ends)


def _prospects(job: JobContext, world: World) -> Prospects:
    redone, why = _redone(job, world)
    return Prospects(
        members=len(world.places),
        standbys=len(job.membership.spares),
        bounds=job.bounds,
        window=job.settings.grow_horizon_seconds,
        excluded=_excluded(job),
        cost=job.worlds.rescale_cost,
        redone=redone,
        why_redone=why,
    )


def _redone(job: JobContext, world: World) -> tuple[float, str]:
    """The training that a stop after a common step loses, s, and why.

    A Checkpointer saves at such a stop. Of any other script only its last stop tells.
    """
    since = job.now - world.trains_since
    if barrier.blind(job.membership, world):
        return since, "the script does not use the SDK to stop at a step"
    last = job.worlds.last_stop
    if last is not None and last.steps:
        lost = since if last.whole else min(since, last.steps * world.step_seconds)
        return lost, f"{counted(last.steps, 'step')} had to be done again after the last stop"
    if last is not None or _is_saved(job, world):
        return 0.0, ""
    return since, "nobody has seen the script save"


def _is_saved(job: JobContext, world: World) -> bool:
    """Whether the script uses a Checkpointer."""
    follows = any(node.saving is not None for node in job.membership.present(world.savers))
    return follows or job.state.checkpoint is not None or bool(job.checkpoints.tracker.held)


def _excluded(job: JobContext) -> int:
    """Return how many nodes have left for being slow, as far back as that counts.

    The journal has the events, so an earlier master's exclusions count, too.
    """
    since = job.clock.moment.unix - exclusion.CAP_SECONDS
    newest = itertools.takewhile(lambda one: one.unix_time >= since, reversed(job.state.events))
    return sum(one.reason == EventReason.STRAGGLER_EXCLUDED for one in newest)


def _keep(job: JobContext, accused: frozenset[int], found: NoExclusion) -> None:
    """Say once in a world why these nodes stay."""
    if accused in job.health.kept:
        return
    job.health.kept.add(accused)
    names = ", ".join(f"node {rank}" for rank in sorted(accused))
    node = min(accused) if len(accused) == 1 else None
    text = f"{names} {'stays' if len(accused) == 1 else 'stay'}: {found.reason}"
    job.out.warn(EventReason.STRAGGLER_KEPT, text, node=node)


def _exclude(job: JobContext, world: World, found: Exclude) -> None:
    slow = [one for one in job.health.slow if one.node in found.nodes]
    trials.begin(job, world, stragglers.rank_of(found.nodes[0]), slow)
    for name in found.nodes:
        rank = stragglers.rank_of(name)
        node = job.membership.nodes.get(rank)
        if node is None:
            continue
        why = next(one.reason for one in job.health.slow if one.node == name)
        text = f"{name} leaves: {why}; {found.reason}"
        job.out.warn(EventReason.STRAGGLER_EXCLUDED, text, node=rank)
        # Nodes of the job on the same host are judged by themselves: they stay.
        rule_actions.exclude(job, rank, f"{name} is slow there", others_leave=False)
        liveness.renew(job, node, "it was slow", f"node {rank} leaves: it is slow")
