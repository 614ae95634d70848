"""Planned changes: grow, shrink, drain, and the boundary that suspend and stop use too.

Belongs here: stopping all ranks together at a step and what follows if that fails. Does not belong
here: whether a change pays (`decide.scaling`), which step (`decide.arming`), the world that follows
(`rounds`).
"""

from __future__ import annotations

from holdfast_master.decide import arming, failure, scaling
from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.scaling import Economy, Fleet, Later, Purpose, Rescale
from holdfast_master.job import incidents
from holdfast_master.job.boundary import Boundary
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_master.job.world import World
from holdfast_wire.messages import Arm, ArmEcho, BoundaryReached, GoodputClass, JobPhase
from holdfast_wire.reasons import EventReason, PhaseReason


def consider(desk: Desk) -> None:
    """Whether the world that is there should change its members."""
    world = desk.world
    if world is None or desk.broken or desk.boundary is not None:
        return
    leaving = _leaving(desk, world)
    if desk.state.phase is JobPhase.TRAINING:
        if desk.case is None and (leaving or not world.finished):
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
    settings = desk.settings
    slow = verdict.purpose is Purpose.SHRINK or any(node.draining is None for node in leaving)
    patience = desk.spec.scale_down_grace_seconds if slow else settings.boundary_seconds
    stop(desk, world, text, patience)


def _growth_asked(desk: Desk, more: int) -> bool:
    """Whether a person wanted the growth, or it undoes a loss that was charged already."""
    if desk.spec.replicas != desk.state.assigned_replicas:
        return True
    newcomers = sorted(desk.spares)[:more]
    return all(rank in desk.state.departed for rank in newcomers)


def stop(desk: Desk, world: World, reason: str, patience: float) -> None:
    """Have all ranks save and stop after the same step, or end the world if they cannot."""
    blind = _blind(desk, world)
    if blind:
        miss(desk, f"{reason}; {blind}")
        return
    desk.boundary = Boundary(reason=reason, arm_id=0, step=0, patience=patience)
    _arm(desk, world, desk.boundary)


def _blind(desk: Desk, world: World) -> str:
    """Why the ranks cannot be stopped together; empty: they can."""
    if world.degraded:
        return "no rank reports steps"
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        if node is not None and any(not item.has_sdk for item in node.ranks):
            return f"node {rank} runs a process without the SDK"
    return ""


def _arm(desk: Desk, world: World, boundary: Boundary) -> None:
    latency = desk.settings.latency_seconds + desk.heartbeat
    choice = arming.choose(
        incidents.sightings(desk, world),
        latency=latency,
        tries=boundary.tries,
        not_before=max(world.reached, boundary.passed),
    )
    boundary.arm_id = desk.command("arm", 0)
    boundary.step = choice.step
    boundary.echoed.clear()
    text = f"all ranks save and stop after step {choice.step}: {boundary.reason}"
    desk.move(Trigger.ARMED, PhaseReason.BOUNDARY, text)
    desk.event(EventReason.BOUNDARY_ARMED, f"{text} ({choice.reason})")
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        if node is not None:
            send_arm(desk, node)
    due = desk.now + choice.expected_seconds
    desk.timers.set(Timer.ECHO, due + 2 * latency + 0.5)
    desk.timers.set(Timer.BOUNDARY, due + boundary.patience)


def resume(desk: Desk, world: World) -> None:
    """An earlier master's boundary: its ranks save and stop all the same, if all know the step."""
    if not world.places.keys() <= desk.roster.nodes.keys():
        incidents.break_world(desk, "a new master took over: had those saved that are gone?")
        return
    settings, stop = desk.settings, desk.state.stop
    reason = desk.case.best.text if desk.case is not None else desk.state.text
    patience = settings.boundary_seconds if stop is None else desk.stop_grace / 2
    desk.boundary = Boundary(reason=reason, arm_id=0, step=0, patience=patience)
    desk.timers.set(Timer.BOUNDARY, desk.now + settings.silence_seconds + patience)


def take_up(desk: Desk, world: World) -> None:
    """Members say that an earlier master had set a boundary; this one has no record of it."""
    if desk.state.phase is not JobPhase.TRAINING:
        return
    text = "ranks are to save and stop, as an earlier master wanted"
    desk.move(Trigger.ARMED, PhaseReason.BOUNDARY, text)
    desk.event(EventReason.BOUNDARY_ARMED, text)
    resume(desk, world)
    _await_echoes(desk)


def _await_echoes(desk: Desk) -> None:
    latency = desk.settings.latency_seconds + desk.heartbeat
    desk.timers.set(Timer.ECHO, desk.now + 2 * latency)


def send_arm(desk: Desk, node: Node) -> None:
    """Send the boundary's step to a member, again after it was away."""
    world, boundary = desk.running(), desk.boundary
    if world is None or boundary is None or node.rank in world.saved:
        return
    if not boundary.arm_id:
        _await_echoes(desk)
        return
    message = Arm(arm_id=boundary.arm_id, step=boundary.step, reason=boundary.reason)
    desk.send(node, message, world.round)


def echoed(desk: Desk, node: Node, message: ArmEcho) -> None:
    """A member's ranks have seen an arm."""
    world, boundary = desk.member(node), desk.boundary
    if world is None or boundary is None:
        return
    if not boundary.arm_id:
        boundary.found[node.rank] = message.arm_id
        boundary.passed = max(boundary.passed, message.seen_at_step)
        return
    if message.arm_id != boundary.arm_id:
        return
    boundary.echoed.add(node.rank)
    boundary.passed = max(boundary.passed, message.seen_at_step)
    if message.seen_at_step >= boundary.step:
        late = f"node {node.rank} saw the arm at step {message.seen_at_step}"
        _again(desk, world, boundary, late)
    elif len(boundary.echoed | world.saved.keys() | world.finished) == len(world.places):
        desk.timers.cancel(Timer.ECHO)


def echo_due(desk: Desk) -> None:
    """Not every member has seen the arm in time."""
    world, boundary = desk.running(), desk.boundary
    if world is None or boundary is None:
        return
    running = world.places.keys() - world.saved.keys() - world.finished
    nodes = [desk.roster.nodes.get(rank) for rank in running]
    back = all(node is not None and node.session is not None for node in nodes)
    # Who is away has an earlier master's arm, or gets a new one when he is back; or time runs out.
    if boundary.arm_id or (back and boundary.is_apart(running)):
        _again(desk, world, boundary, "not every node saw the arm in time")


def _again(desk: Desk, world: World, boundary: Boundary, late: str) -> None:
    if world.saved:
        # Some have stopped already: who has not heard of it by now never will. Who has, as under
        # an arm of this master, is on his way: he stops too, or the deadline comes.
        if not boundary.arm_id:
            miss(desk, f"{late}, and {len(world.saved)} have saved and stopped")
        return
    blind = _blind(desk, world)
    if blind:  # not known when the boundary began: the master may have been new
        miss(desk, f"{late}; {blind}")
        return
    boundary.tries += 1
    if boundary.tries >= desk.settings.arm_tries:
        miss(desk, f"{late}, {boundary.tries} times")
        return
    _arm(desk, world, boundary)


def saved(desk: Desk, node: Node, message: BoundaryReached) -> None:
    """All ranks of a member saved and stopped."""
    world = desk.member(node)
    if world is None or not world.training or node.rank in world.saved:
        return
    if desk.boundary is None:
        # Nobody asked for it: its processes are gone all the same.
        desk.timers.ensure(Timer.MISSING, desk.now + desk.settings.terminal_seconds, node.rank)
        return
    world.saved[node.rank] = message.step
    desk.turn(node.rank, GoodputClass.RESCALE, desk.case.id if desk.case else "")
    check_complete(desk, world)


def check_complete(desk: Desk, world: World) -> None:
    """Whether every member has saved and stopped, or finished."""
    if not (world.saved and world.all_saved()):
        return
    steps = sorted(set(world.saved.values()))
    world.reached = steps[-1]
    reason = desk.boundary.reason if desk.boundary else "all ranks saved and stopped"
    if len(steps) == 1:
        if desk.case is not None:
            desk.case.smooth = True
        desk.event(
            EventReason.BOUNDARY_REACHED, f"all ranks saved and stopped after step {steps[0]}"
        )
    else:
        text = f"the ranks stopped at different steps, {steps[0]} to {steps[-1]}"
        desk.event(EventReason.BOUNDARY_MISSED, text, Warn)
    incidents.break_world(desk, reason)


def boundary_due(desk: Desk) -> None:
    """The ranks have not stopped together in time."""
    world, boundary = desk.running(), desk.boundary
    if world is not None and boundary is not None:
        missing = len(world.places) - len(world.saved.keys() | world.finished)
        miss(desk, f"{missing} nodes did not reach step {boundary.step} in time")


def miss(desk: Desk, text: str) -> None:
    """The ranks cannot be stopped together: they are restarted from their own checkpoint."""
    desk.event(EventReason.BOUNDARY_MISSED, text, Warn)
    incidents.break_world(desk, text)
