"""A checkpoint that somebody asked for: all ranks save after the same step and go on.

Belongs here: setting the step, hearing of it, answering those who wait. Does not belong here: which
step (`decide.arming`), the commit itself (`checkpoints`), a save after which ranks stop
(`stopping`). Nothing of it is in the journal: who waits asks the next master again.
"""

from __future__ import annotations

from holdfast_master.decide import arming
from holdfast_master.inputs import Asked
from holdfast_master.instructions import RefusalCode, Refuse, Reply
from holdfast_master.job import incidents, stopping
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.save_order import SaveOrder
from holdfast_master.job.timers import Timer
from holdfast_master.job.wording import short
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    Arm,
    ArmEcho,
    CheckpointCommitted,
    CheckpointVersion,
    JobPhase,
    TriggerCheckpointRequest,
    TriggerCheckpointResponse,
)
from holdfast_wire.reasons import EventReason

PATIENCE_SECONDS = 300.0
"""Until a checkpoint that was asked for is committed: a slow disk needs minutes for many GiB."""
LONGEST_SECONDS = 3600.0
"""That anybody may wait."""


def asked(desk: Desk, event: Asked, request: TriggerCheckpointRequest) -> None:
    """A user wants a checkpoint of now."""
    seconds = request.timeout_seconds or PATIENCE_SECONDS
    world, number = desk.running(), event.request_id
    if not 0 < seconds <= LONGEST_SECONDS:
        text = f"timeout_seconds is {seconds:g}; it must be above 0 and at most {LONGEST_SECONDS:g}"
        desk.put(Refuse(number, RefusalCode.INVALID_ARGUMENT, "TIMEOUT_OUT_OF_BOUNDS", text))
        return
    if world is None or desk.state.phase is not JobPhase.TRAINING:
        phase = desk.state.phase.name.lower()
        text = f"no round trains now ({phase}): {desk.state.text}; ask again once one does"
        desk.put(Refuse(number, RefusalCode.FAILED_PRECONDITION, "NOT_TRAINING", text))
        return
    problem = _problem(desk, world)
    if problem:
        desk.put(Refuse(number, RefusalCode.FAILED_PRECONDITION, "CANNOT_SAVE", problem))
        return
    because = f": {short(request.reason)}" if request.reason else ""
    reason = f"{event.who} asks for a checkpoint{because}"
    desk.event(EventReason.CHECKPOINT_REQUESTED, reason)
    desk.timers.set(Timer.REQUEST, desk.now + seconds, number)
    order = desk.order
    if order is None:
        order = desk.order = SaveOrder(round=world.round, reason=reason)
    if world.reached >= order.step:  # of a new order that is 0
        _arm(desk, world, order)
    order.requests[number] = world.reached


def _problem(desk: Desk, world: World) -> str:
    """Why the ranks of a world that trains cannot save together; empty: they can."""
    if not world.fact.keeps_checkpoints:
        return "an agent of this world keeps no checkpoints: it is a plain torchrun"
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        if node is None or node.hello is None:
            return f"node {rank} is away; ask again once it is back"
        if not node.hello.knows_goes_on:
            return f"the agent of node {rank} is of a release that cannot save and go on"
    return stopping.blind(desk, world)


def _arm(desk: Desk, world: World, order: SaveOrder) -> None:
    latency = stopping.latency(desk)
    choice = arming.choose(
        incidents.sightings(desk, world),
        latency=latency,
        tries=order.tries,
        not_before=max(world.reached, order.passed),
    )
    order.arm_id = desk.command("save", 0)
    order.step = choice.step
    order.echoed.clear()
    text = f"all ranks save after step {choice.step}: {order.reason} ({choice.reason})"
    desk.event(EventReason.CHECKPOINT_ARMED, text)
    for rank in world.places:
        node = desk.roster.nodes.get(rank)
        if node is not None:
            send(desk, node)
    desk.timers.set(Timer.SAVE_ECHO, desk.now + choice.expected_seconds + 2 * latency + 0.5)


def send(desk: Desk, node: Node) -> None:
    """Send the order's step to a member, again after it was away."""
    world, order = desk.running(), desk.order
    if world is None or order is None or desk.boundary is not None or node.rank in order.echoed:
        return
    message = Arm(arm_id=order.arm_id, step=order.step, reason=order.reason, goes_on=True)
    desk.send(node, message, world.round)


def echoed(desk: Desk, node: Node, message: ArmEcho) -> None:
    """A member's ranks have seen an arm at which they go on; an earlier order's does not count."""
    world, order = desk.running(), desk.order
    if world is None or order is None or message.arm_id != order.arm_id:
        return
    order.echoed.add(node.rank)
    order.passed = max(order.passed, message.seen_at_step)
    if message.seen_at_step > order.step:
        _again(desk, world, order, f"node {node.rank} saw it at step {message.seen_at_step}")
    elif len(order.echoed | world.finished) == len(world.places):
        desk.timers.cancel(Timer.SAVE_ECHO)


def echo_due(desk: Desk) -> None:
    """Not every member has seen the order in time."""
    world, order = desk.running(), desk.order
    if world is not None and order is not None and desk.boundary is None:
        _again(desk, world, order, "not every node saw it in time")


def _again(desk: Desk, world: World, order: SaveOrder, late: str) -> None:
    if desk.boundary is not None:
        return  # its arm took the place of this one, and its save will do
    order.tries += 1
    if order.tries < desk.settings.arm_tries:
        _arm(desk, world, order)
        return
    text = f"step {order.step} was set too late, {order.tries} times: {late}"
    _refuse_all(desk, order, "MISSED", text)


def committed(desk: Desk, fact: CheckpointCommitted) -> None:
    """A step is on storage: whoever asked before it was done has what he wanted."""
    order, version = desk.order, fact.version
    if order is None or version is None:
        return
    answer = TriggerCheckpointResponse(
        step=version.step, path=f"{fact.root.rstrip('/')}/step_{version.step}"
    )
    for number in [one for one, since in order.requests.items() if since < version.step]:
        del order.requests[number]
        desk.timers.cancel(Timer.REQUEST, number)
        desk.put(Reply(number, answer))
    if not order.requests:
        _end(desk, order)


def failed(desk: Desk, version: CheckpointVersion, error: str) -> None:
    """A step will not be on storage."""
    order = desk.order
    if order is not None and version.step == order.step:
        _refuse_all(desk, order, "CHECKPOINT_FAILED", f"step {version.step}: {error}")


def settle(desk: Desk) -> None:
    """An order ends with its world at the latest."""
    world, order = desk.running(), desk.order
    if order is None or (world is not None and world.round == order.round):
        return
    text = f"round {order.round} ended before step {order.step} was on storage; ask again"
    _refuse_all(desk, order, "ROUND_ENDED", text)


def request_due(desk: Desk, request_id: int) -> None:
    """A user has waited long enough."""
    order = desk.order
    if order is None or request_id not in order.requests:
        return
    del order.requests[request_id]
    text = f"step {order.step} is not on storage yet; `holdfast events` tells when it is"
    if desk.state.checkpoint is None:
        text = (
            f"step {order.step} was not saved in time; does the script save with "
            "holdfast.Checkpointer, to a path?"
        )
    desk.put(Refuse(request_id, RefusalCode.DEADLINE_EXCEEDED, "SAVE_SLOW", text))
    if not order.requests:
        _end(desk, order)


def _refuse_all(desk: Desk, order: SaveOrder, reason: str, text: str) -> None:
    for number in _end(desk, order):
        desk.put(Refuse(number, RefusalCode.ABORTED, reason, text))


def _end(desk: Desk, order: SaveOrder) -> list[int]:
    """Forget the order; return who waits for it."""
    desk.order = None
    desk.timers.cancel(Timer.SAVE_ECHO)
    for number in order.requests:
        desk.timers.cancel(Timer.REQUEST, number)
    return list(order.requests)
