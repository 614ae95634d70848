"""Samples of the ranks' collectives, and the clocks of the nodes."""

from __future__ import annotations

import itertools
import math
from typing import Final

from holdfast_master.job.health import exclusions, stragglers
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import GroupHistory, Health, run_of
from holdfast_master.job.state.membership import Node
from holdfast_wire.messages import ClockProbe, ClockReply, CollectiveSamples, GroupCollectives

MOST_GROUPS: Final = 64
"""Process groups of a world that are followed; a script with more is judged by these."""


def probed(job: JobContext, node: Node, _: int, message: ClockProbe) -> None:
    """Tell an agent the time, by a clock that nobody sets while this master lives.

    Were it set, some samples of a window would be in the old time and others in the new.
    """
    health, moment = job.health, job.clock.moment
    if health.clock_anchor is None:
        health.clock_anchor = moment.unix - moment.mono
    reply = ClockReply(probe_id=message.probe_id, master_unix=moment.mono + health.clock_anchor)
    job.out.send(node, reply)


def received(job: JobContext, node: Node, number: int, message: CollectiveSamples) -> None:
    """Take the newest collectives of a member's ranks."""
    world = job.worlds.running_with(node, number)
    # Replicas meet in groups that are made anew: see `slow_replicas`.
    if world is None or world.replicas or not _is_sane(message):
        return
    health = job.health
    health.begin(number)
    health.clock_errors[node.rank] = message.clock_error_seconds
    place = world.places[node.rank]
    for one in message.ranks:
        if one.local_rank < place.member.local_world_size:
            for group in one.groups:
                rank = place.base_rank + one.local_rank
                health.note_sample(rank, job.now)
                _take(health, rank, group, message.clock_offset_seconds, job.now)
    stragglers.look(job, world)
    exclusions.consider(job, world)


def slice_due(job: JobContext) -> None:
    """Go on with a look that is under way."""
    world = job.worlds.running()
    if job.straggler_policy is None:
        for group in job.health.groups.values():
            group.judgement = None  # the spec has switched it off meanwhile
        return
    if world is not None and world.round == job.health.round:
        stragglers.go_on(job)
        stragglers.look(job, world)  # every rank may have sent more meanwhile
        exclusions.consider(job, world)


def _is_sane(message: CollectiveSamples) -> bool:
    return math.isfinite(message.clock_offset_seconds) and 0 <= message.clock_error_seconds < 1e9


def _take(health: Health, rank: int, sent: GroupCollectives, offset: float, now: float) -> None:
    if sent.group not in health.groups and len(health.groups) >= MOST_GROUPS:
        return
    group = health.groups.setdefault(sent.group, GroupHistory())
    group.repeat(rank, sent.period)
    if sent.step:
        group.counted = sent.step, sent.step_sequence
    count = min(len(sent.signatures), len(sent.issued_us))
    at = [micros * 1e-6 + offset for micros in itertools.accumulate(sent.issued_us[:count])]
    if count:
        group.add(rank, run_of(sent.first_sequence, sent.signatures[:count], at), now)
