"""Replicas that keep others waiting: found by their steps, reported, and restarted where hangs are.

Belongs here: the pace of each replica, and what follows from a verdict. Does not belong here: the
verdict (`policies.replicas`), hangs of a job that is one world (`hangs`): ranks of replicas are in
worlds of their own, so their collectives cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast_master.job.incidents import incidents
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.outgoing_batch import Warn
from holdfast_master.job.state.world import World
from holdfast_master.policies import replicas as policy
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.replicas import FrozenReplica, Pace
from holdfast_wire.messages import HangPolicy, HealthMode, RankSection, WorldReplica
from holdfast_wire.reasons import EventReason

LEAST_SECONDS: Final = 30.0
"""Least time without a step before a replica is frozen, s: nothing is compiled or loaded in the
middle of a run for longer, and the others wait as long."""
STEPS: Final = 20.0
"""The same in steps of usual length."""
_WORK: Final = frozenset({RankSection.EVAL, RankSection.CHECKPOINT})


def look(job: JobContext, world: World, settings: HangPolicy) -> None:
    """Look whether a replica of the newest roster keeps the others waiting, or all stand still."""
    roster = job.state.roster
    known = roster.replicas if roster is not None else ()
    members = [one for one in world.replicas if one.number in known]
    paces = [pace for one in members if (pace := _pace(job, world, one)) is not None]
    if not paces or len(paces) < len(members) or job.worlds.barrier is not None:
        return
    usual = STEPS * world.step_seconds
    found = policy.frozen(paces, max(LEAST_SECONDS, usual))
    longest = max(settings.min_seconds, settings.step_time_factor * world.step_seconds)
    if found is None:
        found = policy.all_still(paces, longest)
    if found is not None and found.number not in job.worlds.told_frozen:
        job.worlds.told_frozen.add(found.number)
        _respond(job, world, settings, found)
    elif found is None:
        job.worlds.told_frozen.clear()


def _pace(job: JobContext, world: World, replica: WorldReplica) -> Pace | None:
    """Return the progress of a replica; None: a rank of it has not told any, or it has ended."""
    items = list(_ranks(job, world, replica))
    if not items or any(not item[0] for item in items):
        return None
    return Pace(
        number=replica.number,
        step=min(step for step, _, _ in items),
        still=min(still for _, still, _ in items),
        working=any(works for _, _, works in items),
    )


def _ranks(
    job: JobContext, world: World, replica: WorldReplica
) -> Iterator[tuple[int, float, bool]]:
    """Yield step, time since it, and whether a rank does other work, of each rank."""
    for rank in world.members_of(replica):
        node = job.membership.nodes.get(rank)
        ranks = node.ranks if node is not None and rank not in world.finished else ()
        if node is None or len(ranks) < node.local_world_size:
            yield 0, 0.0, False
        for item in ranks:
            age = job.now - node.ranks_at if node is not None else 0.0
            yield item.step, item.since_step_seconds + age, item.section in _WORK


def _respond(job: JobContext, world: World, settings: HangPolicy, found: FrozenReplica) -> None:
    acts = settings.mode is HealthMode.ACT and job.state.stop is None and not job.spec.suspend
    does = "it is restarted" if acts else "spec.health.hang.mode is Report: it is left alone"
    text = f"{found.reason}; {does}"
    nodes = [
        rank for rank, place in world.places.items() if found.number in (0, place.replica.number)
    ]
    one = nodes[0] if len(nodes) == 1 else None
    job.out.event(EventReason.REPLICA_FROZEN, text, Warn, node=one)
    if not acts:
        return
    for rank in nodes:
        world.disturb(rank)
    item = Evidence(
        kind=EvidenceKind.HUNG,
        text=text,
        at=job.now,
        node_rank=None if found.number == 0 else nodes[0],
        agent_id="" if found.number == 0 else world.places[nodes[0]].member.agent_id,
    )
    incidents.report_process(job, item, world.round)
