"""The boundary: all ranks save and stop after the same step, for a rescale, a suspension, an end.

Belongs here: setting it, hearing of it, what follows if it fails, and taking up an earlier
master's. Does not belong here: which step (`decide.arming`), why the ranks are stopped (`rescale`,
`ending`).
"""

from __future__ import annotations

from holdfast_master.decide import arming
from holdfast_master.job import incidents
from holdfast_master.job.boundary import Boundary
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import Trigger
from holdfast_master.job.world import World
from holdfast_wire.messages import Arm, ArmEcho, BoundaryReached, GoodputClass, JobPhase
from holdfast_wire.reasons import EventReason, PhaseReason


def stop(desk: Desk, world: World, reason: str, patience: float) -> None:
    """Have all ranks save and stop after the same step, or end the world if they cannot."""
    problem = blind(desk, world)
    if problem:
        miss(desk, f"{reason}; {problem}")
        return
    desk.boundary = Boundary(reason=reason, arm_id=0, step=0, patience=patience)
    _arm(desk, world, desk.boundary)


def blind(desk: Desk, world: World) -> str:
    """Why the ranks cannot be stopped together; empty: they can."""
    if world.degraded:
        return "no rank reports steps"
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        if node is not None and any(not item.has_sdk for item in node.ranks):
            return f"node {rank} runs a process without the SDK"
    return ""


def _arm(desk: Desk, world: World, boundary: Boundary) -> None:
    delay = latency(desk)
    choice = _choose(desk, world, boundary)
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
    desk.timers.set(Timer.ECHO, due + 2 * delay + 0.5)
    desk.timers.set(Timer.BOUNDARY, due + boundary.patience)


def _choose(desk: Desk, world: World, boundary: Boundary) -> arming.ArmStep:
    return arming.choose(
        incidents.sightings(desk, world),
        latency=latency(desk),
        tries=boundary.tries,
        not_before=max(world.reached, boundary.passed),
    )


def latency(desk: Desk) -> float:
    """From here to a rank's page, and back here with the next heartbeat, s."""
    return desk.settings.latency_seconds + desk.heartbeat


def resume(desk: Desk, world: World) -> None:
    """An earlier master's boundary: its ranks save and stop all the same, if all know the step."""
    present = sum(world.holds(node.rank, node.agent_id) for node in desk.roster.nodes.values())
    if present < len(world.places):
        incidents.break_world(desk, "a new master took over: had those saved that are gone?")
        return
    settings, stop = desk.settings, desk.state.stop
    reason = desk.case.best.text if desk.case is not None else desk.state.text
    shrinks = len(world.places) > desk.wanted
    patience = desk.spec.scale_down_grace_seconds if shrinks else settings.boundary_seconds
    patience = patience if stop is None else desk.stop_grace / 2
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
    desk.timers.set(Timer.ECHO, desk.now + 2 * latency(desk))


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
    elif back:
        # Its step is not known here; an arm of this moment would be for a later one.
        latest = _choose(desk, world, boundary)
        desk.timers.set(Timer.BOUNDARY, desk.now + latest.expected_seconds + boundary.patience)


def _again(desk: Desk, world: World, boundary: Boundary, late: str) -> None:
    if world.saved:
        # Some have stopped already: who has not heard of an earlier master's arm by now never
        # will. Under an arm of this master the others stop too, or the deadline comes.
        if not boundary.arm_id:
            miss(desk, f"{late}, and {len(world.saved)} have saved and stopped")
        return
    problem = blind(desk, world)
    if problem:  # not known when the boundary began: the master may have been new
        miss(desk, f"{late}; {problem}")
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
