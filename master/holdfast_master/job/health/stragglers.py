"""Stragglers of the running world: windows of steps for the policy, events from its verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast_master.job.health import trials
from holdfast_master.job.incidents import strikes
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import GroupHistory
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.policies.preflight import verdicts
from holdfast_master.policies.straggler import collectives
from holdfast_master.policies.straggler.collectives import Step
from holdfast_master.policies.straggler.slices import SLICE_RANKS, Slices, finished
from holdfast_master.policies.straggler.verdict import StragglerVerdict, judge_slices
from holdfast_master.policies.straggler.window import RankTime, Window, window_slices
from holdfast_wire.messages import RankSection, StragglerPolicy
from holdfast_wire.reasons import EventReason
from holdfast_wire.strikes import StrikeCause

AT_ONCE_RANKS: Final = 256
"""Ranks of a group that are judged in one go, 30 ms of CPU time at the most; more take slices."""
PAUSE_SECONDS: Final = 0.01
"""Between two slices: inputs are taken meanwhile."""
GATHER_SECONDS: Final = 64.0
"""Twice the longest pause between two samples of an agent: a rank of the world that has sent
nothing for so long after the first one is not waited for."""
SILENT_SECONDS: Final = 90.0
"""A rank that has sent nothing for so long, while at least half of its group has, is left out until
it sends again."""
_NODE: Final = "node "
_SLOW: Final = 2.0
"""Times a healthy node's time: a check says no more than that a node is slow."""
_BAD: Final = frozenset(one.name for one in verdicts.BAD)
_MARKED: Final = frozenset({RankSection.CHECKPOINT, RankSection.EVAL})


def look(job: JobContext, world: World) -> None:
    """Begin to judge each group of which every rank has sent something since the last look."""
    policy = job.straggler_policy
    if policy is None or not _is_gathered(job, world):
        return
    for group in job.health.groups.values():
        if _is_due(job, group):
            group.fresh.clear()
            _begin(job, world, group, policy)


def _is_gathered(job: JobContext, world: World) -> bool:
    """Whether all ranks have sent a sample, or have had their time.

    Nobody knows the members of a group before: its first two ranks are no group.
    """
    health = job.health
    late = job.now - health.sampled_since >= GATHER_SECONDS
    return len(health.sampled) >= world.size or late


def _is_due(job: JobContext, group: GroupHistory) -> bool:
    if not group.period or group.judgement is not None:
        return False
    if len(group.fresh) < len(group.samples):
        silent = job.now - group.fresh_since >= SILENT_SECONDS
        if not silent or 2 * len(group.fresh) < len(group.samples):
            return False
        group.forget_silent()
    return len(group.samples) > 1


def _begin(job: JobContext, world: World, group: GroupHistory, policy: StragglerPolicy) -> None:
    judgement = _judged(job, world, group, policy)
    if len(group.samples) <= AT_ONCE_RANKS:
        finished(judgement)
        return
    group.judgement = judgement
    job.timers.ensure(Timer.STRAGGLER_SLICE, job.now + PAUSE_SECONDS)


def go_on(job: JobContext) -> None:
    """Compute one slice of a look that is under way."""
    under_way = [one for one in job.health.groups.values() if one.judgement is not None]
    if not under_way:
        return
    group = under_way[0]
    if group.judgement is not None and next(group.judgement, _OVER) is _OVER:
        group.judgement = None
    if group.judgement is not None or len(under_way) > 1:
        job.timers.set(Timer.STRAGGLER_SLICE, job.now + PAUSE_SECONDS)


_OVER: Final = object()


def _judged(
    job: JobContext, world: World, group: GroupHistory, policy: StragglerPolicy
) -> Slices[None]:
    """Align what has come, and judge the windows that are whole."""
    yield from _align(group)
    size = policy.window_steps
    while len(group.waiting) >= size:
        window, group.waiting = group.waiting[:size], group.waiting[size:]
        made = yield from _window(job, world, group, window)
        group.window = made
        group.record, found = yield from judge_slices(
            group.record, made, policy, _references(job, world)
        )
        if not all(one.marked for one in made.ranks.values()):  # else it says nothing of anybody
            report(job, group, trials.judged(job, world, group, found))


def _references(job: JobContext, world: World) -> dict[str, float]:
    """The time of each checked node over that of a healthy one, as its check judged it.

    A node that was slow before it joined has no faster past here: its peers tell.
    """
    found = {}
    for rank, place in world.places.items():
        judged = job.state.judged_agent(rank, place.member.agent_id)
        if judged is not None:
            found[f"{_NODE}{rank}"] = _SLOW if judged.verdict in _BAD else 1.0
    return found


def _align(group: GroupHistory) -> Slices[None]:
    """Take the steps that the samples contain; what they were made of is of no more use."""
    samples = {rank: tuple(runs) for rank, runs in group.samples.items()}
    found = yield from collectives.aligning(samples, group.period)
    for step in found:
        if step.sequence > group.aligned:
            group.waiting.append(step)
            group.aligned = step.sequence
    group.forget_aligned()
    yield


def _window(
    job: JobContext, world: World, group: GroupHistory, steps: Sequence[Step]
) -> Slices[Window]:
    nodes = world.nodes_by_rank()
    marked = any(item.section in _MARKED for _, item in job.membership.reports(world.places))
    yield
    # Ranks may have come or gone between the looks that the steps are of.
    ranks = set(steps[0].local).intersection(*(step.local for step in steps))
    yield
    about, errors = {}, collectives.step_error(steps, 1.0)
    for count, rank in enumerate(sorted(ranks), 1):
        node = nodes[rank]
        error = job.health.clock_errors.get(node, 0.0) * errors
        about[rank] = RankTime(node=f"{_NODE}{node}", local=0.0, error=error, marked=marked)
        if count % SLICE_RANKS == 0:
            yield
    return (yield from window_slices(group.step_at(steps[0].sequence), steps, about))


def name_of(node_rank: int) -> str:
    """The node as verdicts name it."""
    return f"{_NODE}{node_rank}"


def node_rank(verdict: StragglerVerdict) -> int | None:
    """The accused node; None: the verdict accuses no node."""
    return rank_of(verdict.node) if verdict.node else None


def rank_of(name: str) -> int:
    """The node rank of a node as verdicts name it."""
    return int(name.removeprefix(_NODE))


def accused_nodes(verdicts: Sequence[StragglerVerdict]) -> frozenset[int]:
    """The ranks of the accused nodes."""
    return frozenset(rank_of(one.node) for one in verdicts if one.node)


def only_node(world: World, ranks: Iterable[int]) -> int | None:
    """The node that all these ranks are on; None: there are several, or no ranks."""
    by_rank = world.nodes_by_rank()
    nodes = {by_rank[rank] for rank in ranks if rank in by_rank}
    return nodes.pop() if len(nodes) == 1 else None


def report(job: JobContext, group: GroupHistory, found: tuple[StragglerVerdict, ...]) -> None:
    """Report news, and their end; another group's verdict on the same is none."""
    before = _accused(job.health.slow)
    gone, group.slow = group.slow, found
    after = _accused(job.health.slow)
    for one in found:
        if _accused((one,)) - before:
            rank = node_rank(one)
            job.out.warn(EventReason.STRAGGLER_FOUND, one.reason, node=rank)
            if rank is not None and not one.own_work:
                strikes.strike(job, rank, StrikeCause.STRAGGLER, one.reason)
    for one in gone:
        if _accused((one,)) - after:
            text = f"no longer: {one.reason}"
            job.out.event(EventReason.STRAGGLER_GONE, text, node=node_rank(one))


def _accused(verdicts: tuple[StragglerVerdict, ...]) -> set[tuple[object, ...]]:
    return {(one.subject, one.node, one.replica, one.ranks) for one in verdicts}
