"""Planned changes of a world's members: grow, shrink, drain.

Belongs here: who leaves, who may come, and the incident that it is. Does not belong here: whether a
change pays (`decide.scaling`), how the ranks are stopped (`stopping`), the world that follows
(`rounds`).
"""

from __future__ import annotations

from holdfast_master.decide import failure, scaling
from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.scaling import Economy, Fleet, Later, Purpose, Rescale
from holdfast_master.job import incidents, stopping
from holdfast_master.job.case import Case
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.world import World
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
"""Causes of incidents that begin with a boundary."""


def consider(desk: Desk) -> None:
    """Whether the world that is there should change its members."""
    world = desk.world
    if world is None or desk.broken or desk.boundary is not None:
        return
    leaving = _leaving(desk, world)
    if desk.state.phase is JobPhase.TRAINING:
        if desk.case is not None:
            _stop_again(desk, world, desk.case, leaving)
        elif leaving or not world.finished:
            _weigh(desk, world, leaving)
    elif _cannot_begin(desk, world, leaving):
        text = _why_leaving(leaving) or "fewer nodes are wanted"
        incidents.break_world(desk, text)


def _cannot_begin(desk: Desk, world: World, leaving: list[Node]) -> bool:
    """Whether a world is given up before it trains; one that stands in may as well begin."""
    drained = any(node.rank in desk.state.draining for node in leaving)
    return drained or len(world.places) > desk.bounds.largest


def _leaving(desk: Desk, world: World) -> list[Node]:
    """Members that must not stay, in node rank order."""
    found = {rank for rank in desk.state.draining if rank in world.places}
    if world.highest >= desk.wanted:
        found.update(rank for rank in world.places if rank >= desk.wanted)
    nodes = [desk.roster.nodes[rank] for rank in sorted(found) if rank in desk.roster.nodes]
    return [
        node
        for node in nodes
        if world.holds(node.rank, node.agent_id)
        and (node.rank in desk.state.draining or node.rank in desk.surplus)
    ]


def _why_leaving(leaving: list[Node]) -> str:
    if not leaving:
        return ""
    names = ", ".join(str(node.rank) for node in leaving)
    return f"node {names} leaves" if len(leaving) == 1 else f"nodes {names} leave"


def _stop_again(desk: Desk, world: World, case: Case, leaving: list[Node]) -> None:
    """Go on with a change whose boundary was torn off the journal of an earlier master.

    Members that were shown an arm say so when they are back; this is for when none was.
    """
    nodes = [desk.roster.nodes.get(rank) for rank in world.places]
    if any(node is None or node.session is None for node in nodes):
        return
    if case.best.kind in _INTENDED and case.from_round == world.round and not case.terminal:
        shrinks = any(node.draining is None for node in leaving)
        stopping.stop(desk, world, case.best.text, _patience(desk, slow=shrinks))


def _weigh(desk: Desk, world: World, leaving: list[Node]) -> None:
    if not desk.spares:
        desk.spare_since = None
    elif desk.spare_since is None:
        desk.spare_since = desk.now
    fleet = Fleet(
        members=len(world.places),
        leaving=len(leaving),
        spares=len(desk.spares),
        expected=_expected(desk, world) if desk.spares else 0,
        spare_since=desk.spare_since,
        bounds=desk.bounds,
    )
    economy = Economy(
        window=desk.settings.grow_window_seconds,
        horizon=desk.settings.grow_horizon_seconds,
        cost=desk.rescale_cost,
    )
    verdict = scaling.decide(fleet, economy, desk.now)
    if isinstance(verdict, Rescale):
        _begin(desk, world, leaving, verdict)
    elif isinstance(verdict, Later):
        desk.timers.set(Timer.GROW, verdict.until)
    else:
        desk.timers.cancel(Timer.GROW)


def _expected(desk: Desk, world: World) -> int:
    """Nodes outside the world that are on their way."""
    warming = {
        rank
        for rank, node in desk.roster.nodes.items()
        if rank not in world.places and node.session is not None and not node.warm
    }
    coming = {
        rank
        for rank in desk.operator.pods
        if rank not in desk.roster.nodes and desk.operator.is_coming(rank) and rank < desk.wanted
    }
    return len(warming | coming)


def _begin(desk: Desk, world: World, leaving: list[Node], verdict: Rescale) -> None:
    """A change is decided: open its incident and stop the ranks together."""
    kinds = [node.draining or EvidenceKind.RESCALED for node in leaving]
    kind = failure.strongest(kinds) if kinds else EvidenceKind.RESCALED
    why = _why_leaving(leaving)
    text = f"{why}: {verdict.reason}" if why else verdict.reason
    item = Evidence(
        kind=kind,
        text=text,
        at=desk.now,
        node_rank=leaving[0].rank if len(leaving) == 1 else None,
    )
    asked = verdict.purpose is not Purpose.GROW or _growth_asked(
        desk, verdict.size - len(world.places)
    )
    desk.event(EventReason.RESCALING, text)
    case = incidents.open_case(desk, item, world, asked=asked)
    if case.terminal:
        return
    slow = verdict.purpose is Purpose.SHRINK or any(node.draining is None for node in leaving)
    stopping.stop(desk, world, text, _patience(desk, slow=slow))


def _patience(desk: Desk, *, slow: bool) -> float:
    """How long a boundary may take, s; who shrinks a job says it."""
    return desk.spec.scale_down_grace_seconds if slow else desk.settings.boundary_seconds


def _growth_asked(desk: Desk, more: int) -> bool:
    """Whether a person wanted the growth, or it undoes a loss that was charged already."""
    if desk.spec.replicas != desk.state.assigned_replicas:
        return True
    newcomers = sorted(desk.spares)[:more]
    return all(rank in desk.state.departed for rank in newcomers)
