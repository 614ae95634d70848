"""Figures of a job for its metrics: the values that a scrape reads."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

from holdfast_master.job.checkpoints import interval
from holdfast_master.job.incidents import strikes
from holdfast_master.job.requests import views
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.counts import Counts
from holdfast_master.policies.interval import Costs, wished
from holdfast_wire import messages as wire


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One moment of a job, as its metrics show it."""

    status: wire.JobStatus
    wanted_nodes: int
    """Nodes of a whole world: replicas of the spec, without standbys, in multiples of its unit."""
    first_step: int
    """Step that the newest world began with, before its own first one."""
    goodput_micros: Mapping[wire.GoodputClass, int]
    """Microseconds of all nodes by class, those under earlier masters included."""
    intervals: Mapping[wire.Tier, int]
    """Steps between saves of a tier that has an interval: of ranks that follow the master's
    schedule, else of the job's file. Ranks that save nothing at all follow none."""
    slow_ranks: int
    """Ranks that a straggler verdict names."""
    hangs: bool
    """The running world makes no progress, and is known not to."""
    strikes: Mapping[str, float]
    """Points by host, of hosts that something spoke against."""
    sync_seconds: float
    """For how long the newest round of local SGD held up the rank that waited longest, s; 0: there
    was none."""
    saving: Costs | None
    """What saves cost on the slowest node; None: too little was measured."""
    counts: Counts


def _whole_world(spec: wire.MasterSpec) -> int:
    return spec.replicas - spec.replicas % max(spec.node_unit, spec.nodes_per_replica, 1)


def figures(job: JobContext) -> JobFigures:
    """The job's figures now."""
    world = job.worlds.running()
    judged = world is not None and job.health.round == world.round
    slow = {rank for one in job.health.slow for rank in one.ranks} if judged else set()
    reports = job.membership.reports(world.places) if world is not None else ()
    synced = [item.sync_seconds for _, item in reports]
    every = {tier: steps for tier, steps in wished(job.spec).items() if steps}
    every |= {one.tier: one.every for one in interval.intervals(job) if one.every}
    return JobFigures(
        status=views.status(job),
        wanted_nodes=_whole_world(job.spec),
        first_step=views.first_step(job),
        goodput_micros=job.ledger.whole(job.clock.micros),
        intervals=every,
        slow_ranks=len(slow),
        hangs=judged and job.health.hang_watch.hang is not None,
        strikes={host: one.points for host, one in strikes.standings(job).items()},
        sync_seconds=max(synced, default=0.0),
        saving=interval.measured_costs(job),
        counts=copy.deepcopy(job.counts),
    )
