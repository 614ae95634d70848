"""Reports of agents on their streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from holdfast_master.inputs import AgentMessage
from holdfast_master.job.checkpoints import commits, on_demand, restore
from holdfast_master.job.data import shards
from holdfast_master.job.health import hangs, preflight, samples
from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import eligibility, liveness, notices, pods
from holdfast_master.job.requests import heartbeats, job_end, user_requests
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import FINISHED
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.outgoing_batch import OutgoingBatch
from holdfast_master.job.state.takeover_claims import DeferredReport
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import left_others, short, worker_end
from holdfast_master.job.state.world import World, Worlds
from holdfast_master.job.worlds import roster, start, stores
from holdfast_master.policies import failure
from holdfast_master.policies.failure import Evidence, EvidenceKind
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

_ABOUT_ROUND = (
    wire.WorkerExited,
    wire.RoundStarted,
    wire.RoundStopped,
    wire.BarrierReached,
    wire.BarrierAck,
    wire.MemoryCheckpoints,
    wire.RestoreRequest,
    wire.RestorePlanVerified,
    wire.ReaderOpened,
    wire.ReaderReport,
)
_SHOWN_EXITS = 20
_OLDEST = 600.0
"""s: an exit is not reported later than agents live without a master."""


def received(job: JobContext, node: Node, fence: wire.Fence | None, message: AgentMessage) -> None:
    """Any message of a known agent; its fence names the round that it is about."""
    if job.membership.note_received(node, job.now):
        job.touch(Change.NODE_RECEIVED)
    number = fence.round if fence is not None else 0
    claimed = job.claims.hellos and not job.claims.settled
    if claimed and isinstance(message, _ABOUT_ROUND):
        report = DeferredReport(node.rank, node.agent_id, fence, message)
        if job.claims.hold(report):
            return
    _HANDLERS[type(message)](job, node, number, message)


def take_deferred(job: JobContext) -> None:
    """Take the deferred reports about an adopted world: it may have ended since."""
    reports, job.claims.held = job.claims.held, []
    for report in reports:
        node = job.membership.agent(report.node_rank, report.agent_id)
        if node is not None:
            received(job, node, report.fence, report.message)


def _exited(job: JobContext, node: Node, number: int, message: wire.WorkerExited) -> None:
    world = job.worlds.running_with(node, number)
    if world is not None:
        _note_exit(job, node, world, message)
    if message.barrier:
        return  # the barrier has a report of its own
    if message.exit_code:
        _exited_badly(job, node, number, message)
    elif world is not None:
        _finish(job, node, world, message)
    else:
        _finished_meanwhile(job, node, number, message)


def _note_exit(job: JobContext, node: Node, world: World, message: wire.WorkerExited) -> None:
    # An end at a barrier that this master does not know explains nothing: nobody goes on after it.
    explains = not message.barrier or job.worlds.barrier is not None
    if explains and world.explain(node.rank, message.local_rank):
        job.timers.cancel(Timer.MISSING, subject=node.rank)
    if not message.barrier and world.saves(node.rank):
        world.reached = max(world.reached, message.step)


def _exited_badly(job: JobContext, node: Node, number: int, message: wire.WorkerExited) -> None:
    node.over = node.over or message.final
    if incidents.concerns(job, node, number):
        _failed(job, node, number, message)
    if message.final and not any(incident.given_up for incident in job.incidents.open()):
        # Nobody's incident: the world goes on without it.
        text = f"the torchrun of node {node.rank} has no restarts left and ended"
        liveness.lose(job, node, EvidenceKind.AGENT_FAILED, text)


def _failed(job: JobContext, node: Node, number: int, message: wire.WorkerExited) -> None:
    job.worlds.disturb(node.rank, node.agent_id, number)
    rules = node.rules
    text = worker_end(message, node.rank, message.rank)
    oom_kills = message.memory.oom_kills if message.memory is not None else 0
    kind = failure.worker_kind(message.exit_code, message.error_type, oom_kills)
    short = message.memory if kind is EvidenceKind.OUT_OF_MEMORY else None
    item = Evidence(
        kind=kind,
        text=text,
        at=job.now - min(_OLDEST, max(0.0, message.age_seconds)),
        node_rank=node.rank,
        agent_id=node.agent_id,
        rank=message.rank,
        exit_code=message.exit_code,
        memory_limit=short.limit_bytes if short is not None else 0,
        matched=tuple(rules[index] for index in message.matched_rules if index < len(rules)),
        final=message.final,
    )
    incident = job.incidents.current
    if incident is None or incident.count < _SHOWN_EXITS:
        job.out.warn(EventReason.WORKER_FAILED, text, node=node.rank)
    incidents.report_process(
        job, _laid_to_who_left(job.worlds, node, number, message, item), number
    )


def _laid_to_who_left(
    worlds: Worlds, node: Node, number: int, message: wire.WorkerExited, item: Evidence
) -> Evidence:
    """Lay a broken connection to the process that ended well before, not to the survivor."""
    world = worlds.running_with(node, number)
    if world is None or (left := world.first_done()) is None:
        return item
    if not failure.met_closed_connection(message.error_message or message.stderr_tail):
        return item
    place, rank = left
    return dataclasses.replace(
        item,
        text=left_others(rank, place.member.node_rank, item.text),
        node_rank=place.member.node_rank,
        agent_id=place.member.agent_id,
        rank=rank,
    )


def _finish(job: JobContext, node: Node, world: World, message: wire.WorkerExited) -> None:
    if not 0 <= message.local_rank < node.local_world_size:
        return
    if world.finish(node.rank, message.local_rank):
        job.out.record(node.marked(FINISHED))
        job.out.event(
            EventReason.WORKER_FINISHED, f"all ranks of node {node.rank} finished", node=node.rank
        )
        job.turn(node.rank, wire.GoodputClass.WAITING)
        job.touch(Change.NODE_FINISHED)
    job_end.check_success(job, world)
    if job.state.stop is None and job.worlds.running() is world:
        start.settle(job, world)
        barrier.check_complete(job, world)


def _finished_meanwhile(
    job: JobContext, node: Node, number: int, message: wire.WorkerExited
) -> None:
    """A process of a replica that goes on ended well while no world runs."""
    last, newest = job.worlds.in_replica(node.rank, node.agent_id, number), job.worlds.newest
    if last is None:
        return
    last.explain(node.rank, message.local_rank)
    _finish(job, node, last, message)
    if newest is not None and newest is not last and newest.is_about(node.rank, number):
        newest.explain(node.rank, message.local_rank)
        newest.finish(node.rank, message.local_rank)


def _round_started(job: JobContext, node: Node, number: int, message: wire.RoundStarted) -> None:
    world = job.worlds.running_with(node, number)
    if world is None:
        return
    if not message.first_step:
        # Its hello was from before they began: it need not say why there were none. Processes that
        # have ended since had their start reported before: an agent does not repeat that.
        world.unexplained.pop(node.rank, None)
        job.timers.cancel(Timer.MISSING, subject=node.rank)
    if message.cold_reason and message.cold_reason != node.cold_reason:
        _note_cold(job.out, node, message.cold_reason)
    if message.first_step:
        start.stepped(job, world, node.rank, message.step)
    else:
        start.started(job, world, node.rank)


def _round_stopped(job: JobContext, node: Node, number: int, message: wire.RoundStopped) -> None:
    if message.lease_expired:
        text = f"node {node.rank} stood still; its processes were killed at its lease's end"
        item = node.evidence(EvidenceKind.LEASE_EXPIRED, text, job.now)
        incidents.report_process(job, item, number)
        return
    if job.worlds.running_with(node, number) is not None:
        # Exits and barriers are reported by messages of their own, which may be on their way.
        miss_soon(job, node, range(node.local_world_size))
    else:
        _gone_meanwhile(job, node, number)


def _gone_meanwhile(job: JobContext, node: Node, number: int) -> None:
    """No process of a round is left on a node while no world runs: its replica does not go on."""
    last = job.worlds.in_replica(node.rank, node.agent_id, number)
    if last is not None and node.rank not in last.finished:
        incidents.note_gone(job, node, f"node {node.rank} has no processes of round {number}")


def absent(local_world_size: int, hello: wire.Hello, number: int) -> frozenset[int]:
    """The local ranks of round `number` that do not run according to a hello."""
    running = {worker.local_rank for worker in hello.workers if worker.round == number}
    return frozenset(range(local_world_size)) - running


def miss_soon(job: JobContext, node: Node, local_ranks: Collection[int]) -> None:
    """Processes of the node are gone; unless it says why soon, that is an incident."""
    world = job.worlds.member(node)
    if world is None or node.rank in world.saved or node.rank in world.finished:
        return
    if world.miss(node.rank, local_ranks):
        until = job.now + job.settings.terminal_seconds
        job.timers.ensure(Timer.MISSING, until, node.rank)


def missing_due(job: JobContext, rank: int) -> None:
    """A node without processes has not said why."""
    node = job.membership.nodes.get(rank)
    if node is None:
        return
    world = job.worlds.member(node)
    if world is None:
        _missing_meanwhile(job, node)
        return
    if rank in world.saved or rank in world.finished or not world.unexplained.get(rank):
        return
    if job.worlds.barrier is not None:
        # Its processes were to stop: the word of it was lost with its stream.
        barrier.miss(job, f"node {rank} has no processes left and did not say that it saved")
        return
    text = f"node {rank} has no processes of round {world.round_of(rank)} and did not say why"
    item = node.evidence(EvidenceKind.WORKERS_MISSING, text, job.now)
    incidents.report_process(job, item, world.round_of(rank))


def _missing_meanwhile(job: JobContext, node: Node) -> None:
    """A node of a replica that was to go on has not said why it has no processes."""
    last = job.worlds.in_replica(node.rank, node.agent_id)
    if last is not None and last.unexplained.get(node.rank) and node.rank not in last.finished:
        incidents.note_gone(job, node, f"node {node.rank} has no processes and did not say why")


def _barrier(job: JobContext, node: Node, number: int, message: wire.BarrierReached) -> None:
    if job.worlds.running_with(node, number) is not None:
        barrier.saved(job, node, message)
    else:
        _gone_meanwhile(job, node, number)


def _ack(job: JobContext, node: Node, number: int, message: wire.BarrierAck) -> None:
    runs = job.worlds.running_with(node, number) is not None  # else it is said again
    if message.goes_on and (runs or job.worlds.in_replica(node.rank, node.agent_id, number)):
        on_demand.acked(job, node, message)
    elif runs and not message.goes_on:
        barrier.acked(job, node, message)


def _command_done(job: JobContext, node: Node, _: int, message: wire.CommandDone) -> None:
    if message.command_id in job.state.commands:
        job.out.record(wire.CommandFinished(command_id=message.command_id, ok=message.ok))
    user_requests.stacks_arrived(job, node, message)


def _warmed(job: JobContext, node: Node, _: int, message: wire.Warmed) -> None:
    if node.warm:
        return
    node.warm = True
    if message.cold_reason:
        _note_cold(job.out, node, message.cold_reason)
    else:
        text = f"node {node.rank} is ready after {message.seconds:.1f} s"
        job.out.event(EventReason.NODE_WARM, text, node=node.rank)
    eligibility.refresh(job, node)


def _note_cold(out: OutgoingBatch, node: Node, reason: str) -> None:
    node.cold_reason = reason
    text = f"node {node.rank} starts its processes cold: {short(reason)}"
    out.event(EventReason.NODE_COLD, text, node=node.rank)


def _goodbye(job: JobContext, node: Node, _: int, message: wire.Goodbye) -> None:
    why = f": {short(message.reason)}" if message.reason else ""
    if node.rank in job.state.released:
        liveness.lose(job, node, EvidenceKind.NODE_REMOVED, f"it was told to leave and left{why}")
    elif message.terminated:
        text = f"node {node.rank} was asked by SIGTERM to end{why}"
        liveness.drain(job, node, pods.taken_kind(job.operator, node), text)
    elif message.signalled:
        text = f"node {node.rank} was ended by a signal{why}"
        liveness.lose(job, node, pods.taken_kind(job.operator, node), text)
    else:
        kind = EvidenceKind.AGENT_FAILED if message.failed else EvidenceKind.AGENT_LEFT
        how = "'s agent cannot go on" if message.failed else " left"
        liveness.lose(job, node, kind, f"node {node.rank}{how}{why}")


_HANDLERS: dict[type, Callable[[JobContext, Node, int, Any], None]] = {
    wire.Heartbeat: heartbeats.received,
    wire.WorkerExited: _exited,
    wire.RoundStarted: _round_started,
    wire.RoundStopped: _round_stopped,
    wire.StorePrepared: stores.prepared,
    wire.BarrierReached: _barrier,
    wire.BarrierAck: _ack,
    wire.CommandDone: _command_done,
    wire.Warmed: _warmed,
    wire.Goodbye: _goodbye,
    wire.NoticeReceived: lambda job, node, _, message: notices.received(job, node, message),
    wire.MemoryCheckpoints: commits.held,
    wire.ShardsPersisted: commits.shard,
    wire.CommitResult: commits.committed,
    wire.RestoreRequest: restore.asked,
    wire.RestorePlanVerified: restore.checked,
    wire.ClockProbe: samples.probed,
    wire.CollectiveSamples: samples.received,
    wire.EvidenceCollected: hangs.collected,
    wire.CheckListening: preflight.listening,
    wire.NodeChecked: preflight.measured,
    wire.ReplicaReady: roster.ready,
    wire.RosterFailed: roster.failed,
    wire.SyncChosen: roster.sync_chosen,
    wire.ReaderOpened: shards.opened,
    wire.ReaderReport: shards.reported,
}
