"""The operator's stream: specs, pods, answers, requests to stop."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast_master.job.incidents import incidents, strikes
from holdfast_master.job.nodes import eligibility, replacement
from holdfast_master.job.requests import job_end, user_requests
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import OFF
from holdfast_master.job.state.timers import Timer
from holdfast_master.job.state.wording import short
from holdfast_master.job.worlds import flush
from holdfast_master.policies.quantities import counted, verb
from holdfast_wire.messages import (
    ClusterStrikes,
    HealthMode,
    HealthPolicy,
    MasterSpec,
    SpecAccepted,
    StopRequest,
)
from holdfast_wire.reasons import EndReason, EventReason


def connected(job: JobContext) -> None:
    """The operator's stream began."""
    view = job.operator
    first = not view.ever
    if not view.connected:
        job.out.event(EventReason.OPERATOR_CONNECTED, "the operator watches this job")
    view.connected, view.ever, view.list_done = True, True, False
    view.listed.clear()
    view.cluster = ClusterStrikes()  # those of the new stream follow
    replacement.repeat(job)
    strikes.report(job)
    job_end.send_finish(job)
    if first:
        refresh_all(job, Change.OPERATOR_CONNECTED)


def disconnected(job: JobContext) -> None:
    """The operator's stream ended; training goes on."""
    view = job.operator
    if not view.connected:
        return
    view.connected = view.list_done = False
    job.out.event(
        EventReason.OPERATOR_DISCONNECTED, "no operator: pods are neither made nor deleted"
    )
    user_requests.operator_gone(job)


def refresh_all(job: JobContext, why: Change) -> None:
    """Work out anew who is a candidate."""
    for node in list(job.membership.nodes.values()):
        eligibility.refresh(job, node)
    job.touch(why)


def spec_arrived(job: JobContext, spec: MasterSpec) -> None:
    """A spec: in force if it is newer than the one that is."""
    before = job.state.spec
    if before is not None and _version(spec) <= _version(before):
        user_requests.spec_in_force(job)
        return
    wanted = job.wanted
    job.out.record(SpecAccepted(spec=spec), durable=True)
    text = (
        f"generation {spec.generation}: {counted(spec.replicas, 'replica')} "
        f"({spec.min_replicas} to {spec.max_replicas}), {counted(spec.standbys, 'standby')}"
    )
    job.out.event(EventReason.SPEC_ACCEPTED, f"{text}, suspended" if spec.suspend else text)
    for text in ineffective(spec):
        if before is None or text not in ineffective(before):
            job.out.warn(EventReason.HEALTH_SETTINGS, text)
    if job.wanted < wanted:
        job.membership.release_overdue = False
        job.timers.set(Timer.RELEASE, job.now + spec.scale_down_grace_seconds)
    if job.wanted != wanted:
        replacement.recall(
            job, f"{counted(job.wanted, 'node')} {verb(job.wanted, 'is', 'are')} wanted"
        )
    if before is not None and before.below_min_timeout_seconds != spec.below_min_timeout_seconds:
        job.timers.cancel(Timer.BELOW_MIN)
    job_end.watch_deadline(job)
    refresh_all(job, Change.SPEC_ARRIVED)
    incidents.judge_again(job)
    user_requests.spec_in_force(job)


def _version(spec: MasterSpec) -> tuple[int, int]:
    return spec.generation, spec.revision


def release_due(job: JobContext) -> None:
    """Surplus nodes have waited long enough for the new world."""
    job.membership.release_overdue = True
    job.touch(Change.RELEASE_DUE)


def stop_requested(job: JobContext, wish: StopRequest) -> None:
    """The operator wants the job to end."""
    grace = max(0.0, wish.grace_seconds)
    job.end.grace, job.end.by = grace, job.now + grace
    text = short(wish.reason) or "the operator wants the job to end"
    reason = EndReason.STOPPED_BY_OPERATOR
    job.request_end(succeeded=False, reason=reason, text=text, now=grace == 0)
    if grace == 0:
        flush.hurry(job)


def ineffective(spec: MasterSpec) -> Iterator[str]:
    """Yield the odd health settings of a job: field, value, effect and remedy of each."""
    health = spec.health or HealthPolicy()
    hang, slow = health.hang, health.straggler
    hangs = hang is not None and hang.mode not in OFF
    if hang is not None and hangs and hang.first_step_seconds < hang.min_seconds:
        yield (
            f"health.hang.firstStepSeconds {hang.first_step_seconds:g} is below minSeconds "
            f"{hang.min_seconds:g}, so a first step has {hang.min_seconds:g} s as well: raise "
            "firstStepSeconds, or lower minSeconds"
        )
    if slow is None or slow.mode in OFF:
        return
    if slow.votes > slow.votes_out_of:
        yield (
            f"health.straggler.votes {slow.votes} is above votesOutOf {slow.votes_out_of}, so "
            "nobody is ever called slow: lower votes, or raise votesOutOf"
        )
    room = spec.replicas - spec.min_replicas >= max(1, spec.node_unit)
    if slow.mode is HealthMode.ACT and not room and not spec.standbys:
        yield (
            f"health.straggler.mode Act excludes nobody: fewer than minReplicas "
            f"{spec.min_replicas} would be left. Set worker.standbys, or lower minReplicas"
        )
