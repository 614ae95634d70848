"""Trials of stragglers: a node that left for a slow rank, and its successor in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from holdfast_master.job.incidents import strikes
from holdfast_master.job.nodes import rule_actions
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import GroupHistory
from holdfast_master.job.state.world import World
from holdfast_master.policies.straggler import trial
from holdfast_master.policies.straggler.exclusion import CAP_SECONDS
from holdfast_master.policies.straggler.trial import TrialView
from holdfast_master.policies.straggler.verdict import StragglerVerdict
from holdfast_wire.messages import StragglerOutcome, StragglerTrial
from holdfast_wire.reasons import EventReason
from holdfast_wire.strikes import StrikeCause


def begin(job: JobContext, world: World, node: int, slow: Iterable[StragglerVerdict]) -> None:
    """Write down which ranks were slow on a node that leaves, and how slow."""
    ranks = {rank for one in slow for rank in one.ranks}
    group = next((one for one in job.health.groups.values() if one.slow and one.window), None)
    if group is None or group.window is None:
        return
    found = StragglerTrial(
        round=world.round,
        node_rank=node,
        agent_id=world.places[node].member.agent_id,
        host=job.operator.host_of(node) or "",
        ranks=tuple(sorted(ranks)),
        usual=trial.usual_above(group.record.by_time, ranks),
        slow=trial.above(trial.logarithms(group.window), ranks) or 0.0,
        unix_time=job.clock.moment.unix,
    )
    job.out.record(found, durable=True)


def judged(
    job: JobContext, world: World, group: GroupHistory, found: Sequence[StragglerVerdict]
) -> tuple[StragglerVerdict, ...]:
    """Look at open trials after a window; return its verdicts with what the trials have shown."""
    for one in list(job.state.straggler_trials.values()):
        if one.round != world.round and one.outcome is not StragglerOutcome.RANK:
            _look(job, world, group, one, found)
    shown = trial.with_own_work(job.state.straggler_trials.values())
    return trial.marked(found, shown)


def _look(
    job: JobContext,
    world: World,
    group: GroupHistory,
    one: StragglerTrial,
    found: Sequence[StragglerVerdict],
) -> None:
    holders = {at: node for at, node in world.nodes_by_rank().items() if at in one.ranks}
    if len(holders) < len(one.ranks) or job.clock.moment.unix - one.unix_time > CAP_SECONDS:
        return
    here = {world.places[node].member.agent_id for node in holders.values()}
    slow = trial.is_above(one, group.window) if group.window is not None else None
    run = group.trial_runs.get(one.round, 0)
    if slow is not None and group.record.windows > 1:  # the first one is not judged
        run = group.trial_runs[one.round] = max(run, 0) + 1 if slow else min(run, 0) - 1
    accused = trial.accuse(found, one.ranks)
    view = TrialView(elsewhere=one.agent_id not in here, run=run, accused=accused)
    after = trial.outcome(one, view)
    if after is not one.outcome:
        job.out.record(dataclasses.replace(one, outcome=after), durable=True)
        if after is StragglerOutcome.RANK:
            _clear(job, one, sorted(set(holders.values())))


def _clear(job: JobContext, one: StragglerTrial, holders: Sequence[int]) -> None:
    """Take back what the slow ranks brought on their nodes."""
    for node in {one.node_rank, *holders}:
        strikes.withdraw(job, node, StrikeCause.STRAGGLER, one.unix_time - CAP_SECONDS)
    ranks = ", ".join(map(str, one.ranks))
    nodes = ", ".join(map(str, holders))
    text = (
        f"rank {ranks} is slow on node {nodes} as it was on node {one.node_rank}: it is the work "
        "of the rank, such as logging, and no node leaves for it any more"
    )
    if one.host:
        text += f"; {one.host} is not avoided any more"
        rule_actions.lift(job, one.host, f"rank {ranks} is as slow elsewhere")
    job.out.event(EventReason.STRAGGLER_CLEARED, text, node=one.node_rank)
