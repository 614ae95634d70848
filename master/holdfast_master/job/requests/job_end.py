"""The ways out: success, failure, stop, suspend."""

from __future__ import annotations

from holdfast_master.instructions import Finished
from holdfast_master.job.data import shards
from holdfast_master.job.incidents import goodput_marks, incidents
from holdfast_master.job.nodes import liveness, replacement
from holdfast_master.job.rescale import barrier
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.phases import ENDED, Trigger
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.world import World
from holdfast_master.job.worlds import flush
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EndReason, EventReason, PhaseReason

_PARTING = 5.0
"""s that an agent has to leave after its grace."""


def toward_end(job: JobContext, stop: wire.StopRequested) -> None:
    """The end is decided: at a barrier where there is time for one, else at once.

    What only memory has is written to storage before the agents that hold it are told to leave,
    also after a success: a script may end between two steps of its schedule.
    """
    if job.state.phase is wire.JobPhase.STOPPING:
        pursue(job)
        return
    text = _text(job, stop)
    if not (stop.succeeded or stop.now) and _at_barrier(job, text):
        return
    incidents.break_world(job, text)
    latest = None if job.end.by is None else job.end.by - _PARTING
    if not flush.for_end(job, text, grace(job, stop), latest):
        _end_now(job, stop)


def _text(job: JobContext, stop: wire.StopRequested) -> str:
    return job.end.text or job.state.text or stop.reason


def _at_barrier(job: JobContext, reason: str) -> bool:
    """Whether a barrier is on its way; set one if the ranks can stop together."""
    world = job.worlds.running()
    if world is None or not world.training or world.finished:
        return False
    if job.worlds.barrier is None:
        # Half of the time is the barrier's, the rest is for SIGTERM.
        barrier.stop(job, world, reason, job.end.grace / 2)
    return job.worlds.running() is not None


def _end_now(job: JobContext, stop: wire.StopRequested) -> None:
    text = _text(job, stop)
    job.move(Trigger.END_DECIDED, stop.reason, text)
    incidents.break_world(job, text)
    incidents.close_all(job)
    job.timers.cancel(Timer.BELOW_MIN, Timer.ACTIVE_DEADLINE)
    for node in list(job.membership.nodes.values()):
        job.turn(node.rank, wire.GoodputClass.WAITING)
        dismiss(job, node)
        if node.over:
            # It has ended by itself: nothing of it is left to wait for.
            liveness.lose(
                job, node, EvidenceKind.AGENT_FAILED, f"the torchrun of node {node.rank} ended"
            )
    job.timers.set(Timer.END, job.now + grace(job, stop) + _PARTING)
    job.touch(Change.END_STARTED)


def asked(stop: wire.StopRequested) -> bool:
    """Whether somebody wanted the end."""
    return stop.reason in {EndReason.STOPPED_BY_USER, EndReason.STOPPED_BY_OPERATOR}


def grace(job: JobContext, stop: wire.StopRequested) -> float:
    """SIGTERM to SIGKILL at this end, s: what has failed already is killed at once."""
    if stop.succeeded:
        return job.settings.stop_grace_seconds
    if not asked(stop):
        return 0.0
    return job.end.grace if job.end.by is None else max(0.0, job.end.by - job.now)


def outcome(stop: wire.StopRequested) -> wire.LeaveOutcome:
    """The outcome that agents exit with."""
    if stop.succeeded:
        return wire.LeaveOutcome.SUCCEEDED
    return wire.LeaveOutcome.RELEASED if asked(stop) else wire.LeaveOutcome.FAILED


def dismiss(job: JobContext, node: Node) -> None:
    """Tell an agent that the job has ended."""
    stop = job.state.stop
    if stop is not None:
        job.out.leave(node, outcome(stop), _text(job, stop), grace(job, stop))


def pursue(job: JobContext) -> None:
    """Once every agent has gone, the job has ended."""
    if not job.membership.nodes:
        conclude(job)


def conclude(job: JobContext) -> None:
    """The last step: write everything down and say so."""
    stop = job.state.stop
    if stop is None or job.state.phase is not wire.JobPhase.STOPPING:
        return
    goodput_marks.write(job)
    text = _text(job, stop)
    _report_unsaved(job)
    trigger = Trigger.ENDED_WELL if stop.succeeded else Trigger.ENDED_BADLY
    if stop.succeeded:
        shards.report_unread(job)
        job.out.event(EventReason.JOB_SUCCEEDED, text)
    elif asked(stop):
        job.out.event(EventReason.JOB_STOPPED, f"{stop.reason}: {text}")
    else:
        job.out.event(EventReason.JOB_FAILED, f"{stop.reason}: {text}", wire.EventSeverity.ERROR)
    job.move(trigger, stop.reason, text)
    job.timers.cancel(Timer.END, Timer.MARK, Timer.HANG, Timer.HANG_EVIDENCE)
    send_finish(job)
    job.out.put(Finished(stop.succeeded, stop.reason))


def _report_unsaved(job: JobContext) -> None:
    """A script that saves here ended after steps that it did not save."""
    stop, stored, last = job.state.stop, job.state.stored, job.state.assigned
    if stop is None or not stop.succeeded or stored is None or last is None:
        return
    saved, done = stored.step, job.state.ended_steps.get(last.round, 0)
    if saved < done:
        text = (
            f"the run ended after step {done}, and the newest checkpoint on storage is step "
            f"{saved}: close({done}) of the script's Checkpointer saves the last step"
        )
        job.out.warn(EventReason.STEPS_NOT_SAVED, text)


def send_finish(job: JobContext) -> None:
    """Tell the operator that the job has ended."""
    stop = job.state.stop
    if stop is not None and job.state.phase in ENDED and job.operator.connected:
        number = job.out.command("finish", 0)
        decision = wire.FinishDecision(
            decision_id=number, succeeded=stop.succeeded, reason=stop.reason, text=job.state.text
        )
        job.out.send_operator(decision)


def check_success(job: JobContext, world: World) -> None:
    """End the job once the success policy is met."""
    policy, rank0 = job.spec.success_policy, world.rank0_done
    met, reason = judge_success(policy, world.size, world.ranks_done, rank0=rank0)
    if met:
        job.request_end(succeeded=True, reason=EndReason.SUCCEEDED, text=reason)


def toward_suspend(job: JobContext) -> None:
    """The spec suspends the job: at a barrier, then nothing runs and nodes are released."""
    if job.state.phase is wire.JobPhase.SUSPENDED:
        return
    why = "the job is suspended"
    if _at_barrier(job, why):
        return
    incidents.break_world(job, why)
    incidents.close_all(job)
    if job.state.stop is not None:
        return
    if flush.for_end(job, why, job.settings.stop_grace_seconds, None):
        return
    job.timers.cancel(Timer.BELOW_MIN, Timer.JOIN_WINDOW)
    job.move(Trigger.SUSPENDED, PhaseReason.SUSPENDED, "stopped at a checkpoint; waits")
    job.out.event(EventReason.SUSPENDED, "the spec suspends the job; its nodes are released")
    job.worlds.recovering = False
    nodes = list(job.membership.nodes.values())
    for node in nodes:
        job.turn(node.rank, wire.GoodputClass.WAITING)
    replacement.release(job, nodes, why, free_pods=True)


def resume(job: JobContext) -> None:
    """The spec no longer suspends the job."""
    text = "the spec resumes the job"
    job.move(Trigger.RESUMED, PhaseReason.RESUMED, text)
    job.out.event(EventReason.RESUMED, text)
    watch_deadline(job)
    job.touch(Change.RESUMED)


def watch_deadline(job: JobContext) -> None:
    """Set the deadline of the job's own time."""
    limit = job.spec.active_deadline_seconds
    if limit <= 0:
        job.timers.cancel(Timer.ACTIVE_DEADLINE)
        return
    left = limit - (job.clock.job_seconds - job.state.active_since)
    job.timers.set(Timer.ACTIVE_DEADLINE, job.now + max(0.0, left))


def deadline_due(job: JobContext) -> None:
    """The job has run longer than it may."""
    if job.state.phase is wire.JobPhase.SUSPENDED:
        return
    limit = job.spec.active_deadline_seconds
    text = f"the job ran longer than activeDeadlineSeconds {limit:g}"
    job.request_end(succeeded=False, reason=EndReason.DEADLINE_EXCEEDED, text=text)


def below_min_due(job: JobContext) -> None:
    """Too few nodes for too long."""
    timeout = job.spec.below_min_timeout_seconds
    ready = len(job.membership.candidates)
    least = counted(job.bounds.smallest, "node")
    text = f"{ready} of at least {least} {verb(ready, 'was', 'were')} ready for {timeout:g} s"
    job.request_end(succeeded=False, reason=EndReason.BELOW_MIN_REPLICAS, text=text)


def judge_success(
    policy: wire.SuccessPolicy, size: int, done: int, *, rank0: bool
) -> tuple[bool, str]:
    """Decide whether the policy is met, and say why; an unspecified policy means all workers.

    Of size ranks, those done, and rank 0 if so, have ended with exit code 0.
    """
    if policy is wire.SuccessPolicy.ANY_WORKER:
        return done > 0, f"{_ranks_finished(done)}, one is enough"
    if policy is wire.SuccessPolicy.RANK0:
        return rank0, "rank 0 has finished" if rank0 else "rank 0 has not finished"
    return 0 < size <= done, f"{done} of {_ranks_finished(size)}"


def _ranks_finished(ranks: int) -> str:
    return f"{counted(ranks, 'rank')} {verb(ranks, 'has', 'have')} finished"
