"""Planned changes of a world's members: grow, shrink, drain."""

from __future__ import annotations

import math

from holdfast_master.job.incidents import incidents
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.incident import OpenIncident
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.policies import failure, scaling
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_master.policies.scaling import Fleet, Purpose, Rescale
from holdfast_wire.messages import JobPhase
from holdfast_wire.reasons import EventReason

_INTENDED = frozenset(
    {
        EvidenceKind.PREEMPTED,
        EvidenceKind.DRAINED,
        EvidenceKind.RESTART_ASKED,
        EvidenceKind.RESCALED,
    }
)
"""Causes of incidents that begin with a barrier."""


def consider(job: JobContext) -> None:
    """Decide on a change of the members of the newest world."""
    world = job.worlds.newest
    if world is None or job.worlds.broken or job.worlds.barrier is not None:
        return
    leaving = _leaving(job, world)
    if job.state.phase is JobPhase.TRAINING:
        if job.incidents.current is not None:
            _stop_again(job, world, job.incidents.current, leaving)
        elif leaving or not world.finished:
            _weigh(job, world, leaving)
    elif _cannot_begin(job, world, leaving):
        text = _why_leaving(leaving) or "fewer nodes are wanted"
        incidents.break_world(job, text)


def _cannot_begin(job: JobContext, world: World, leaving: list[Node]) -> bool:
    """Whether a world is given up before it trains; one that stands in may as well begin."""
    drained = any(node.rank in job.state.draining for node in leaving)
    return drained or len(world.places) > job.bounds.largest


def _leaving(job: JobContext, world: World) -> list[Node]:
    """Members that must not stay, in node rank order."""
    found = {rank for rank in job.state.draining if rank in world.places}
    if world.highest >= job.wanted:
        found.update(rank for rank in world.places if rank >= job.wanted)
    return [
        node
        for node in job.membership.present(sorted(found))
        if world.has(node)
        and (node.rank in job.state.draining or node.rank in job.membership.surplus)
    ]


def _why_leaving(leaving: list[Node]) -> str:
    if not leaving:
        return ""
    names = ", ".join(str(node.rank) for node in leaving)
    return f"node {names} leaves" if len(leaving) == 1 else f"nodes {names} leave"


def _stop_again(job: JobContext, world: World, incident: OpenIncident, leaving: list[Node]) -> None:
    """Go on with a change whose barrier was torn off the journal of an earlier master.

    Members that were shown a barrier say so when they are back; this is for when none was.
    """
    nodes = [job.membership.nodes.get(rank) for rank in world.places]
    if any(node is None or node.session is None for node in nodes):
        return
    intended = incident.best.kind in _INTENDED and incident.from_round == world.round
    if intended and not incident.terminal and world.replicas:
        incidents.break_world(job, incident.best.text)
    elif intended and not incident.terminal:
        shrinks = any(node.draining is None for node in leaving)
        barrier.stop(job, world, incident.best.text, _patience(job, slow=shrinks))


def _weigh(job: JobContext, world: World, leaving: list[Node]) -> None:
    if not job.membership.spares:
        job.membership.spare_since = None
    elif job.membership.spare_since is None:
        job.membership.spare_since = job.now
    fleet = Fleet(
        members=len(world.places),
        leaving=len(leaving),
        spares=len(job.membership.spares),
        expected=_expected(job, world) if job.membership.spares else 0,
        spare_since=job.membership.spare_since,
        bounds=job.bounds,
        cost=0.0 if world.replicas else job.worlds.rescale_cost,
        starts_until=_starts_until(job, world),
    )
    verdict = scaling.decide(fleet, job.settings, job.now)
    if isinstance(verdict, Rescale):
        _begin(job, world, leaving, verdict)
    elif verdict.until is not None:
        job.timers.set(Timer.GROW, verdict.until)
    else:
        job.timers.cancel(Timer.GROW)


def _starts_until(job: JobContext, world: World) -> float | None:
    """The time up to which a world counted as training may be starting; None: it trains."""
    if world.first_step or (world.all_guessed() and not world.sdk_ranks):
        return None
    if world.sdk_ranks:
        return math.inf  # its ranks say so once they step
    if job.spec.replicas != job.state.assigned_replicas:
        return None  # a person wants the size
    until = world.trains_since + job.settings.unseen_start_seconds
    return until if job.now < until else None


def _expected(job: JobContext, world: World) -> int:
    """Nodes outside the world that are on their way."""
    warming = {
        rank
        for rank, node in job.membership.nodes.items()
        if rank not in world.places and node.session is not None and not node.warm
    }
    coming = {
        rank
        for rank in job.operator.pods
        if rank not in job.membership.nodes and job.operator.is_coming(rank) and rank < job.wanted
    }
    return len(warming | coming)


def _begin(job: JobContext, world: World, leaving: list[Node], verdict: Rescale) -> None:
    """A change is decided: open its incident and stop the ranks together."""
    kinds = [node.draining or EvidenceKind.RESCALED for node in leaving]
    kind = failure.strongest(kinds) if kinds else EvidenceKind.RESCALED
    why = _why_leaving(leaving)
    text = f"{why}: {verdict.reason}" if why else verdict.reason
    alone = leaving[0].rank if len(leaving) == 1 else None
    item = Evidence(kind=kind, text=text, at=job.now, node_rank=alone)
    more = verdict.size - len(world.places)
    asked = verdict.purpose is not Purpose.GROW or _growth_asked(job, more)
    job.out.event(EventReason.RESCALING, text)
    incident = incidents.open_incident(job, item, world, asked=asked)
    if incident.terminal:
        return
    if world.replicas:  # those that stay train on, and are given another roster
        incidents.break_world(job, text)
        return
    slow = verdict.purpose is Purpose.SHRINK or any(node.draining is None for node in leaving)
    barrier.stop(job, world, text, _patience(job, slow=slow))


def _patience(job: JobContext, *, slow: bool) -> float:
    """The time that a barrier may take, s; the spec sets it for a reduction."""
    return job.spec.scale_down_grace_seconds if slow else job.settings.barrier_seconds


def _growth_asked(job: JobContext, more: int) -> bool:
    """Whether a person wanted the growth, or it undoes a loss that was charged already."""
    if job.spec.replicas != job.state.assigned_replicas:
        return True
    newcomers, unit = sorted(job.membership.spares)[:more], job.bounds.unit
    # A loss takes a whole unit out of the world: the others of it have waited for the successor.
    units = (newcomers[at : at + unit] for at in range(0, len(newcomers), unit))
    return all(any(rank in job.state.departed for rank in one) for one in units)
