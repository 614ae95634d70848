"""The answer to GetHealth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast_master.job.health import slow_replicas, stragglers
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import GroupHistory
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.world import World
from holdfast_master.policies.preflight.verdicts import BAD
from holdfast_master.policies.quantities import verb
from holdfast_master.policies.slow_replicas import LOOKS
from holdfast_master.policies.straggler.verdict import StragglerVerdict
from holdfast_master.policies.straggler.window import RankTime
from holdfast_wire import messages as wire

_FROZEN: Final = "frozen"
"""Cause of a hang of whole replicas."""
_MOST_NAMED: Final = 20
"""Replicas that a text names."""
_NO_WORLD: Final = "no world runs"
_BAD: Final = frozenset(one.name for one in BAD)


def health(job: JobContext) -> wire.GetHealthResponse:
    """The ranks of the running world, and the verdicts that hold."""
    world = job.worlds.running()
    if world is None:
        return wire.GetHealthResponse(not_judged=_NO_WORLD)
    group = _judged(job) if job.health.round == world.round else None
    window = group.window if group is not None else None
    return wire.GetHealthResponse(
        round=world.round,
        ranks=tuple(_ranks(job, world, group)),
        slow=tuple(_slow(one) for one in job.health.slow),
        not_judged=_not_judged(job, group),
        step_seconds=window.step if window is not None else 0.0,
        windows=group.record.windows if group is not None else 0,
        hang=_frozen(job, world)
        or (_hang(job, world) if job.health.round == world.round else None),
    )


def summary(job: JobContext) -> tuple[wire.HealthReason, str]:
    """The worst of what holds, with words for people."""
    world, failed = job.worlds.running(), _failed_checks(job)
    if world is None:
        return (
            (wire.HealthReason.PREFLIGHT_FAILED, failed)
            if failed
            else (wire.HealthReason.NOT_JUDGED, _NO_WORLD)
        )
    known = job.health.round == world.round
    found = job.health.hang_watch.hang
    if known and found is not None and found.verdict is not None:
        return wire.HealthReason.HANG, found.verdict.reason
    frozen = _frozen(job, world)
    if frozen is not None:
        return wire.HealthReason.HANG, frozen.text
    slow = job.health.slow if known else ()
    if slow:
        more = f"; and {len(slow) - 1} more" if len(slow) > 1 else ""
        return wire.HealthReason.STRAGGLER, slow[0].reason + more
    if failed:
        return wire.HealthReason.PREFLIGHT_FAILED, failed
    return _nothing_found(job, _not_judged(job, _judged(job) if known else None))


def _failed_checks(job: JobContext) -> str:
    """Return the problems of present nodes that failed the check before they joined."""
    bad = [
        f"node {rank} is {judged.verdict.lower()}: {judged.reason}"
        for rank, judged in sorted(job.state.judged.items())
        if judged.verdict in _BAD and job.membership.agent(rank, judged.agent_id)
    ]
    more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
    return bad[0] + more if bad else ""


def _nothing_found(job: JobContext, not_judged: str) -> tuple[wire.HealthReason, str]:
    watched = job.hang_policy is not None
    hangs = "it does not hang" if watched else "hangs are not looked for"
    if not not_judged:
        return wire.HealthReason.AS_EXPECTED, f"nobody is slow; {hangs}"
    if not watched:
        return wire.HealthReason.NOT_JUDGED, f"{not_judged}; {hangs}"
    return wire.HealthReason.AS_EXPECTED, f"{hangs}; nobody is judged to be slow: {not_judged}"


def _frozen(job: JobContext, world: World) -> wire.HangStatus | None:
    """The replicas that stand still; None: all go on, or the job is one world."""
    frozen = sorted(job.worlds.frozen.keys() & world.by_replica.keys())
    everybody = 0 in job.worlds.frozen and not frozen
    nodes = [rank for number in frozen for rank in world.by_replica[number]]
    nodes = list(world.places) if everybody else nodes
    if not world.replicas or not nodes:
        return None
    named = ", ".join(map(str, frozen[:_MOST_NAMED]))
    more = f" and {len(frozen) - _MOST_NAMED} more" if len(frozen) > _MOST_NAMED else ""
    one, several = f"replica {named} stands", f"replicas {named}{more} stand"
    out = f"{verb(len(frozen), one, several)} still; the others go on"
    reports = job.membership.reports(nodes)
    still = [item.since_step_seconds + job.now - node.ranks_at for node, item in reports]
    return wire.HangStatus(
        cause=_FROZEN,
        nodes=tuple(nodes),
        seconds=max(0.0, min(still, default=0.0)),
        text="no replica completes a step" if everybody else out,
    )


def _hang(job: JobContext, world: World) -> wire.HangStatus | None:
    """The hang that holds; None: the world makes progress."""
    found = job.health.hang_watch.hang
    if found is None:
        return None
    seconds, verdict = max(0.0, job.now - found.began), found.verdict
    if verdict is None:
        return wire.HangStatus(seconds=seconds, text=found.reason)
    ranks = tuple(one.rank for one in verdict.ranks)
    places = world.nodes_by_rank()
    nodes = tuple(sorted({places[rank] for rank in ranks if rank in places}))
    return wire.HangStatus(
        cause=verdict.kind.value, ranks=ranks, nodes=nodes, seconds=seconds, text=verdict.reason
    )


def _judged(job: JobContext) -> GroupHistory | None:
    """The group that most ranks are in, among those that have a whole window."""
    whole = [one for one in job.health.groups.values() if one.window is not None]
    return max(whole, key=lambda one: len(one.samples), default=None)


def _not_judged(job: JobContext, group: GroupHistory | None) -> str:
    policy = job.straggler_policy
    if policy is None:
        return "spec.health.straggler.mode is Disabled"
    if group is not None or slow_replicas.GROUP in job.health.groups:
        return ""
    world = job.worlds.running()
    if world is not None and world.replicas:
        return _replicas_not_judged(job)
    if not job.health.groups:
        return "no rank has sent collectives yet: torch's flight recorder has none"
    if not any(one.period for one in job.health.groups.values()):
        return "the ranks' collectives have no period yet, so a step is not known"
    return f"no window of {policy.window_steps} steps is whole yet"


def _replicas_not_judged(job: JobContext) -> str:
    """Why replicas have not been compared."""
    if any(one.newest for one in job.health.replica_work.values()):
        return f"not each replica has been looked at {LOOKS} times yet"
    return "replicas are compared where they train in step (holdfast.replicas), two or more of them"


def _ranks(job: JobContext, world: World, group: GroupHistory | None) -> Iterator[wire.RankHealth]:
    times = group.window.ranks if group is not None and group.window is not None else {}
    reports = list(job.membership.reports(world.places))
    # Ranks of different replicas have the same numbers.
    local = {
        (node.rank, item.local_rank): own
        for node, item in reports
        if (own := _own_seconds(world, node, item, times)) is not None
    }
    # Of two ranks the faster one is the middle: the slower one shows its lag.
    middle = sorted(local.values())[(len(local) - 1) // 2] if local else 0.0
    for node, item in reports:
        mine = local.get((node.rank, item.local_rank))
        yield wire.RankHealth(
            rank=_rank(world, node, item),
            node_rank=node.rank,
            local_rank=item.local_rank,
            step=item.step,
            step_guessed=item.step_source is wire.StepSource.COLLECTIVES,
            since_step_seconds=item.since_step_seconds,
            local_seconds=mine or 0.0,
            lag_seconds=0.0 if mine is None else mine - middle,
            replica=world.places[node.rank].replica.number,
        )


def _own_seconds(
    world: World, node: Node, item: wire.RankProgress, times: Mapping[int, RankTime]
) -> float | None:
    """A rank's own time of a step, of replicas in step for a micro-batch; None: it is not known."""
    if world.replicas:
        return item.work_seconds or None
    one = times.get(_rank(world, node, item))
    return None if one is None else one.local


def _rank(world: World, node: Node, item: wire.RankProgress) -> int:
    return world.places[node.rank].base_rank + item.local_rank


def _slow(one: StragglerVerdict) -> wire.SlowVerdict:
    node = stragglers.node_rank(one)
    return wire.SlowVerdict(
        subject=one.subject.value,
        node="" if node is None else str(node),
        ranks=one.ranks,
        since_step=one.since_step,
        percent=one.percent,
        lost_node_seconds_per_hour=one.node_seconds_per_hour,
        text=one.reason,
        considered=one.considered,
    )
