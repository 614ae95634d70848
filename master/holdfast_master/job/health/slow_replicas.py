"""Stragglers among replicas that train in step: looks at their work, events from the verdicts.

Where a replica is on one node, that node is accused; of several nodes nobody can tell which one is
slow, since they wait for each other in each step. Nobody is excluded for it: the verdict is shown.
"""

from __future__ import annotations

from typing import Final

from holdfast_master.job.health import stragglers
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import GroupHistory
from holdfast_master.job.state.world import World
from holdfast_master.policies import slow_replicas as policy
from holdfast_master.policies.slow_replicas import ReplicaWork
from holdfast_master.policies.straggler.verdict import StragglerVerdict, Subject
from holdfast_wire import messages as wire

GROUP: Final = "replicas"
"""Name of the replicas among the groups of collectives."""


def look(job: JobContext, world: World) -> None:
    """Take the newest step of each replica of the roster; vote once each has enough."""
    settings = job.straggler_policy
    if settings is None:
        return
    job.health.begin(world.round)
    works, named = job.health.replica_work, frozenset(job.state.named_replicas)
    members = [one for one in world.replicas if one.number in named]
    for gone in works.keys() - named:
        del works[gone]
    members = [one for one in members if _take(job, world, one)]
    out_of = max(1, settings.votes_out_of)
    if policy.vote(works, settings.slowdown_percent, max(1, settings.votes), out_of):
        group = job.health.groups.setdefault(GROUP, GroupHistory())
        slow = [one for one in members if works[one.number].slow_since]
        found = tuple(_verdict(world, one, works[one.number], out_of) for one in slow)
        stragglers.report(job, group, found)
    elif len(works) < 2 and (left := job.health.groups.pop(GROUP, None)) is not None:
        stragglers.report(job, left, ())  # nobody is there to be slower than


def _take(job: JobContext, world: World, replica: wire.WorldReplica) -> bool:
    """Look at a replica's newest step; False: it tells no work, as one that is dealt none."""
    reports = [item for _, item in job.membership.reports(world.members_of(replica))]
    if not reports or not all(item.work_seconds > 0 for item in reports):
        job.health.replica_work.pop(replica.number, None)
        return False
    work = job.health.replica_work.setdefault(replica.number, ReplicaWork())
    work.look(min(one.step for one in reports), max(one.work_seconds for one in reports))
    return True


def _verdict(
    world: World, replica: wire.WorldReplica, work: ReplicaWork, out_of: int
) -> StragglerVerdict:
    nodes = world.members_of(replica)
    ranks = [
        world.places[node].base_rank + local
        for node in nodes
        for local in range(world.places[node].member.local_world_size)
    ]
    alone = len(nodes) == 1
    return StragglerVerdict(
        subject=Subject.NODE if alone else Subject.RANK,
        node=stragglers.name_of(nodes[0]) if alone else "",
        ranks=tuple(ranks),
        replica=replica.number,
        since_step=work.slow_since,
        percent=work.percent,
        node_seconds_per_hour=36.0 * work.percent / (1 + work.percent / 100) * len(world.places),
        considered=(),
        reason=policy.reason(replica.number, nodes, work, out_of),
    )
