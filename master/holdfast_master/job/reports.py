"""What agents report on their streams.

Belongs here: one handler for each message. Does not belong here: hellos (`hellos`), the ends of
streams (`losses`), what is done next (`steering`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master.decide import failure, success
from holdfast_master.decide.failure import Evidence, EvidenceKind
from holdfast_master.decide.success import Tally
from holdfast_master.inputs import AgentMessage
from holdfast_master.job import (
    candidacy,
    checkpoints,
    heartbeats,
    incidents,
    losses,
    origins,
    saving,
    sightings,
    starting,
    stopping,
    stores,
    users,
)
from holdfast_master.job.claims import Held
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.roster import Node
from holdfast_master.job.state import FINISHED
from holdfast_master.job.timers import Timer
from holdfast_master.job.wording import short, worker_end
from holdfast_master.job.world import World
from holdfast_wire.messages import (
    ArmEcho,
    BoundaryReached,
    CheckpointHeld,
    CheckpointShard,
    CommandDone,
    CommandFinished,
    Fence,
    Goodbye,
    GoodputClass,
    Heartbeat,
    NodeMarked,
    OriginChecked,
    RestoreAsked,
    RoundStarted,
    RoundStopped,
    StepCommitted,
    StorePrepared,
    Warmed,
    WorkerExited,
)
from holdfast_wire.reasons import EndReason, EventReason

_ABOUT_ROUND = (
    WorkerExited,
    RoundStarted,
    RoundStopped,
    BoundaryReached,
    ArmEcho,
    CheckpointHeld,
    RestoreAsked,
    OriginChecked,
)
_SHOWN_EXITS = 20
_OLDEST = 600.0
"""s: an exit is not reported later than agents live without a master."""


def received(desk: Desk, node: Node, fence: Fence | None, message: AgentMessage) -> None:
    """Any message of a known agent; its fence names the round that it is about."""
    losses.heard(desk, node)
    number = fence.round if fence is not None else 0
    if isinstance(message, _ABOUT_ROUND):
        report = Held(node.rank, node.agent_id, fence, message)
        if desk.claims.hold(report):
            return
    _HANDLERS[type(message)](desk, node, number, message)


def hear_held(desk: Desk) -> None:
    """What was reported about a claimed world before it was adopted: it may have ended since."""
    reports, desk.claims.held = desk.claims.held, []
    for report in reports:
        node = desk.roster.nodes.get(report.node_rank)
        if node is not None and node.agent_id == report.agent_id:
            received(desk, node, report.fence, report.message)


def _exited(desk: Desk, node: Node, number: int, message: WorkerExited) -> None:
    desk.timers.cancel(Timer.MISSING, node.rank)
    world = desk.member(node)
    current = world is not None and world.round == number
    if message.boundary:
        return
    if world is not None and current:
        world.reached = max(world.reached, message.step)
        if message.exit_code == 0:
            _finished(desk, node, world, message)
            return
    if message.exit_code == 0:
        return
    node.over = node.over or message.final
    if incidents.concerns(desk, node, number):
        _failed(desk, node, number, message)
    if message.final and not any(case.given_up for case in desk.open_cases()):
        # Nobody's incident: the world goes on without it.
        text = f"the torchrun of node {node.rank} has no restarts left and ended"
        losses.lose(desk, node, EvidenceKind.AGENT_FAILED, text)


def _failed(desk: Desk, node: Node, number: int, message: WorkerExited) -> None:
    patterns = tuple(
        node.patterns[index] for index in message.matched_patterns if index < len(node.patterns)
    )
    text = worker_end(message, node.rank, message.rank)
    item = Evidence(
        kind=failure.worker_kind(message.exit_code, message.error_type),
        text=text,
        at=desk.now - min(_OLDEST, max(0.0, message.age_seconds)),
        node_rank=node.rank,
        agent_id=node.agent_id,
        rank=message.rank,
        exit_code=message.exit_code,
        patterns=patterns,
        final=message.final,
    )
    case = desk.case
    if case is None or case.count < _SHOWN_EXITS:
        desk.event(EventReason.WORKER_FAILED, text, Warn, node=node.rank)
    incidents.report_process(desk, item, number)


def _finished(desk: Desk, node: Node, world: World, message: WorkerExited) -> None:
    if not 0 <= message.local_rank < node.local_world_size:
        return
    if world.finish(node.rank, message.local_rank):
        mark = NodeMarked(node_rank=node.rank, agent_id=node.agent_id, mark=FINISHED, value=True)
        desk.record(mark)
        desk.event(
            EventReason.WORKER_FINISHED, f"all ranks of node {node.rank} finished", node=node.rank
        )
        desk.turn(node.rank, GoodputClass.WAITING)
        desk.dirty = True
    check_success(desk, world)
    if desk.state.stop is None:
        starting.settle(desk, world)
        stopping.check_complete(desk, world)


def check_success(desk: Desk, world: World) -> None:
    """Whether the success policy is met now."""
    tally = Tally(world_size=world.size, ranks_done=world.ranks_done, rank0_done=world.rank0_done)
    verdict = success.decide(desk.spec.success_policy, tally)
    if verdict.met:
        desk.request_end(succeeded=True, reason=EndReason.SUCCEEDED, text=verdict.reason)


def _round_started(desk: Desk, node: Node, number: int, message: RoundStarted) -> None:
    world = desk.member(node)
    if world is None or world.round != number:
        return
    # Its hello was from before they began: it need not say why there were none.
    desk.timers.cancel(Timer.MISSING, node.rank)
    if message.cold_reason and message.cold_reason != node.cold_reason:
        _note_cold(desk, node, message.cold_reason)
    if message.first_step:
        starting.stepped(desk, world, node.rank, message.step)
    else:
        starting.started(desk, world, node.rank)


def _round_stopped(desk: Desk, node: Node, number: int, message: RoundStopped) -> None:
    if message.lease_expired:
        item = Evidence(
            kind=EvidenceKind.LEASE_EXPIRED,
            text=f"node {node.rank} stood still; its processes were killed at its lease's end",
            at=desk.now,
            node_rank=node.rank,
            agent_id=node.agent_id,
        )
        incidents.report_process(desk, item, number)
        return
    world = desk.member(node)
    if world is not None and world.round == number:
        # Exits and boundaries are reported by messages of their own, which may be on their way.
        miss_soon(desk, node)


def miss_soon(desk: Desk, node: Node) -> None:
    """The node's processes are gone; unless it says why soon, that is an incident."""
    world = desk.member(node)
    if world is not None and node.rank not in world.saved and node.rank not in world.finished:
        until = desk.now + desk.settings.terminal_seconds
        desk.timers.ensure(Timer.MISSING, until, node.rank)


def missing_due(desk: Desk, rank: int) -> None:
    """A node without processes has not said why."""
    node = desk.roster.nodes.get(rank)
    world = desk.member(node) if node is not None else None
    if node is None or world is None or rank in world.saved or rank in world.finished:
        return
    if desk.boundary is not None:
        # Its processes were to stop: the word of it was lost with its stream.
        stopping.miss(desk, f"node {rank} has no processes left and did not say that it saved")
        return
    item = Evidence(
        kind=EvidenceKind.WORKERS_MISSING,
        text=f"node {rank} has no processes of round {world.round} and did not say why",
        at=desk.now,
        node_rank=rank,
        agent_id=node.agent_id,
    )
    incidents.report_process(desk, item, world.round)


def _store(desk: Desk, node: Node, _: int, message: StorePrepared) -> None:
    stores.prepared(desk, node, message)


def _boundary(desk: Desk, node: Node, number: int, message: BoundaryReached) -> None:
    world = desk.member(node)
    if world is not None and world.round == number:
        desk.timers.cancel(Timer.MISSING, node.rank)
        stopping.saved(desk, node, message)


def _echo(desk: Desk, node: Node, number: int, message: ArmEcho) -> None:
    world = desk.member(node)
    if world is None or world.round != number:
        return  # the one of the round before is said again
    if message.goes_on:
        saving.echoed(desk, node, message)
    else:
        stopping.echoed(desk, node, message)


def _command_done(desk: Desk, node: Node, _: int, message: CommandDone) -> None:
    if message.command_id in desk.state.commands:
        desk.record(CommandFinished(command_id=message.command_id, ok=message.ok))
    users.stacks_arrived(desk, node, message)


def _warmed(desk: Desk, node: Node, _: int, message: Warmed) -> None:
    if node.warm:
        return
    node.warm = True
    if message.cold_reason:
        _note_cold(desk, node, message.cold_reason)
    else:
        text = f"node {node.rank} is ready after {message.seconds:.1f} s"
        desk.event(EventReason.NODE_WARM, text, node=node.rank)
    candidacy.refresh(desk, node)


def _note_cold(desk: Desk, node: Node, reason: str) -> None:
    node.cold_reason = reason
    text = f"node {node.rank} starts its processes cold: {short(reason)}"
    desk.event(EventReason.NODE_COLD, text, node=node.rank)


def _goodbye(desk: Desk, node: Node, _: int, message: Goodbye) -> None:
    why = f": {short(message.reason)}" if message.reason else ""
    if node.rank in desk.state.released:
        losses.lose(desk, node, EvidenceKind.NODE_REMOVED, f"it was told to leave and left{why}")
    elif message.terminated:
        text = f"node {node.rank} was asked by SIGTERM to end{why}"
        losses.drain(desk, node, sightings.taken_kind(desk, node), text)
    else:
        kind = EvidenceKind.AGENT_FAILED if message.failed else EvidenceKind.AGENT_LEFT
        how = "'s agent cannot go on" if message.failed else " left"
        losses.lose(desk, node, kind, f"node {node.rank}{how}{why}")


_HANDLERS: dict[type, Callable[[Desk, Node, int, Any], None]] = {
    Heartbeat: heartbeats.heard,
    WorkerExited: _exited,
    RoundStarted: _round_started,
    RoundStopped: _round_stopped,
    StorePrepared: _store,
    BoundaryReached: _boundary,
    ArmEcho: _echo,
    CommandDone: _command_done,
    Warmed: _warmed,
    Goodbye: _goodbye,
    CheckpointHeld: checkpoints.held,
    CheckpointShard: checkpoints.shard,
    StepCommitted: checkpoints.committed,
    RestoreAsked: origins.asked,
    OriginChecked: origins.checked,
}
