"""The ways out: success, failure, stop, suspend.

Belongs here: stopping what runs, telling everybody, and the last phases. Does not belong here:
whether the job has succeeded (`decide.success`) or failed (`incidents`).
"""

from __future__ import annotations

from holdfast_master.decide.failure import EvidenceKind
from holdfast_master.instructions import Finished
from holdfast_master.job import (
    charges,
    goodput_marks,
    incidents,
    losses,
    replacements,
    rescue,
    stopping,
)
from holdfast_master.job.desk import Desk
from holdfast_master.job.roster import Node
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED, Trigger
from holdfast_wire.messages import (
    EventSeverity,
    FinishDecision,
    GoodputClass,
    JobPhase,
    LeaveOutcome,
    StopRequested,
)
from holdfast_wire.reasons import EndReason, EventReason, PhaseReason

_PARTING = 5.0
"""s that an agent has to leave after its grace."""


def toward_end(desk: Desk, stop: StopRequested) -> None:
    """The end is decided: at a boundary where there is time for one, else at once.

    What only memory has is written to storage before the agents that hold it are told to leave.
    """
    if desk.state.phase is JobPhase.STOPPING:
        pursue(desk)
        return
    if stop.succeeded:
        _end_now(desk, stop)
        return
    text = _text(desk, stop)
    if not stop.now and _at_boundary(desk, text):
        return
    incidents.break_world(desk, text)
    latest = None if desk.stop_by is None else desk.stop_by - _PARTING
    if not rescue.for_end(desk, text, grace(desk, stop), latest):
        _end_now(desk, stop)


def _text(desk: Desk, stop: StopRequested) -> str:
    return desk.end_text or desk.state.text or stop.reason


def _at_boundary(desk: Desk, reason: str) -> bool:
    """Whether a boundary is on its way; begins one if it can be had."""
    world = desk.running()
    if world is None or not world.training or world.finished:
        return False
    if desk.boundary is None:
        # Half of the time is the boundary's, the rest is for SIGTERM.
        stopping.stop(desk, world, reason, desk.stop_grace / 2)
    return desk.running() is not None


def _end_now(desk: Desk, stop: StopRequested) -> None:
    text = _text(desk, stop)
    desk.move(Trigger.END_DECIDED, stop.reason, text)
    incidents.break_world(desk, text)
    charges.close_all(desk)
    desk.timers.cancel(Timer.BELOW_MIN)
    desk.timers.cancel(Timer.ACTIVE_DEADLINE)
    for node in list(desk.roster.nodes.values()):
        desk.turn(node.rank, GoodputClass.WAITING)
        dismiss(desk, node)
        if node.over:
            # It has ended by itself: nothing of it is left to wait for.
            losses.lose(
                desk, node, EvidenceKind.AGENT_FAILED, f"the torchrun of node {node.rank} ended"
            )
    desk.timers.set(Timer.END, desk.now + grace(desk, stop) + _PARTING)
    desk.dirty = True


def asked(stop: StopRequested) -> bool:
    """Whether somebody wanted the end."""
    return stop.reason in {EndReason.STOPPED_BY_USER, EndReason.STOPPED_BY_OPERATOR}


def grace(desk: Desk, stop: StopRequested) -> float:
    """SIGTERM to SIGKILL at this end, s: what has failed already is killed at once."""
    if stop.succeeded:
        return desk.settings.stop_grace_seconds
    if not asked(stop):
        return 0.0
    return desk.stop_grace if desk.stop_by is None else max(0.0, desk.stop_by - desk.now)


def outcome(stop: StopRequested) -> LeaveOutcome:
    """What agents exit with."""
    if stop.succeeded:
        return LeaveOutcome.SUCCEEDED
    return LeaveOutcome.RELEASED if asked(stop) else LeaveOutcome.FAILED


def dismiss(desk: Desk, node: Node) -> None:
    """Tell an agent that the job has ended."""
    stop = desk.state.stop
    if stop is not None:
        replacements.leave(desk, node, outcome(stop), _text(desk, stop), grace(desk, stop))


def pursue(desk: Desk) -> None:
    """Once every agent has gone, the job has ended."""
    if not desk.roster.nodes:
        conclude(desk)


def conclude(desk: Desk) -> None:
    """The last step: write everything down and say so."""
    stop = desk.state.stop
    if stop is None or desk.state.phase is not JobPhase.STOPPING:
        return
    goodput_marks.write(desk)
    text = _text(desk, stop)
    trigger = Trigger.ENDED_WELL if stop.succeeded else Trigger.ENDED_BADLY
    if stop.succeeded:
        desk.event(EventReason.JOB_SUCCEEDED, text)
    else:
        desk.event(EventReason.JOB_FAILED, f"{stop.reason}: {text}", EventSeverity.ERROR)
    desk.move(trigger, stop.reason, text)
    desk.timers.cancel(Timer.END)
    desk.timers.cancel(Timer.MARK)
    tell_finish(desk)
    desk.put(Finished(stop.succeeded, stop.reason))


def tell_finish(desk: Desk) -> None:
    """Tell the operator that the job has ended."""
    stop = desk.state.stop
    if stop is not None and desk.state.phase in ENDED and desk.operator.connected:
        number = desk.command("finish", 0)
        decision = FinishDecision(
            decision_id=number, succeeded=stop.succeeded, reason=stop.reason, text=desk.state.text
        )
        desk.tell(decision)


def toward_suspend(desk: Desk) -> None:
    """The spec suspends the job: at a boundary, then nothing runs and nodes are released."""
    if desk.state.phase is JobPhase.SUSPENDED:
        return
    if _at_boundary(desk, "the job is suspended"):
        return
    incidents.break_world(desk, "the job is suspended")
    charges.close_all(desk)
    if desk.state.stop is not None:
        return
    if rescue.for_end(desk, "the job is suspended", desk.settings.stop_grace_seconds, None):
        return
    desk.timers.cancel(Timer.BELOW_MIN)
    desk.timers.cancel(Timer.JOIN_WINDOW)
    desk.move(Trigger.SUSPENDED, PhaseReason.SUSPENDED, "stopped at a checkpoint; waits")
    desk.event(EventReason.SUSPENDED, "the spec suspends the job; its nodes are released")
    desk.recovering = False
    for node in desk.roster.nodes.values():
        desk.turn(node.rank, GoodputClass.WAITING)
    replacements.release(
        desk, list(desk.roster.nodes.values()), "the job is suspended", free_pods=True
    )


def resume(desk: Desk) -> None:
    """The spec no longer suspends the job."""
    text = "the spec resumes the job"
    desk.move(Trigger.RESUMED, PhaseReason.RESUMED, text)
    desk.event(EventReason.RESUMED, text)
    watch_deadline(desk)
    desk.dirty = True


def watch_deadline(desk: Desk) -> None:
    """Set the deadline of the job's own time."""
    limit = desk.spec.active_deadline_seconds
    if limit <= 0:
        desk.timers.cancel(Timer.ACTIVE_DEADLINE)
        return
    left = limit - (desk.clock.job_seconds - desk.state.active_since)
    desk.timers.set(Timer.ACTIVE_DEADLINE, desk.now + max(0.0, left))


def deadline_due(desk: Desk) -> None:
    """The job has run longer than it may."""
    if desk.state.phase is JobPhase.SUSPENDED:
        return
    limit = desk.spec.active_deadline_seconds
    text = f"the job ran longer than activeDeadlineSeconds {limit:g}"
    desk.request_end(succeeded=False, reason=EndReason.DEADLINE_EXCEEDED, text=text)


def below_min_due(desk: Desk) -> None:
    """Too few nodes for too long."""
    timeout = desk.spec.below_min_timeout_seconds
    text = (
        f"{len(desk.roster.candidates)} of at least {desk.bounds.smallest} nodes were ready "
        f"for {timeout:g} s"
    )
    desk.request_end(succeeded=False, reason=EndReason.BELOW_MIN_REPLICAS, text=text)
