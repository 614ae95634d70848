"""Pods that end before their agent has joined: a wrong command, a missing program, a broken node.

Belongs here: telling people, and giving up a job that cannot begin. Does not belong here: nodes
that were known (`losses`).
"""

from __future__ import annotations

from holdfast_master.decide import budgets
from holdfast_master.decide.failure import TAKEN
from holdfast_master.decide.pod_ends import pod_kind
from holdfast_master.job import charges
from holdfast_master.job.desk import Desk, Warn
from holdfast_master.job.operator_view import is_over
from holdfast_master.job.timers import Timer
from holdfast_master.job.transitions import ENDED
from holdfast_master.job.wording import pod_end
from holdfast_wire.messages import BudgetCharge, BudgetKind, JobPhase, PodObservation, PodPhase
from holdfast_wire.reasons import EventReason


def pod_seen(desk: Desk, pod: PodObservation) -> None:
    """A pod whose agent is not there: has it ended by itself without ever having joined."""
    state = desk.state
    gone = state.departed.get(pod.node_rank)
    joined = gone is not None and gone.pod_uid == pod.pod_uid
    if joined or not is_over(pod) or pod.phase is PodPhase.SUCCEEDED:
        return
    # One that was being deleted proves nothing; an operator that is new does not know by whom.
    if pod.wanted or pod.terminating or pod.pod_uid in desk.operator.ended_early:
        return
    if state.phase in ENDED | {JobPhase.STOPPING, JobPhase.SUSPENDED}:
        return
    desk.operator.note_early_end(pod.pod_uid)
    text = pod_end(pod, "before its agent joined")
    desk.event(EventReason.POD_FAILED, text, Warn, node=pod.node_rank)
    # A master that may not know of a running world does not know which pods' agents had joined.
    if desk.running() is None and not desk.timers.running(Timer.ADOPT):
        _charge(desk, pod, text)


def _charge(desk: Desk, pod: PodObservation, text: str) -> None:
    """Nothing trains, and this is why: it counts as a restart without progress.

    A pod that its node turned away or took down is no try of the script's: that is a preemption.
    """
    kind = BudgetKind.PREEMPTIONS if pod_kind(pod) in TAKEN else BudgetKind.NO_PROGRESS
    incident = f"pod {pod.pod_uid}"
    if any(charge.incident_id == incident for charge in desk.state.charges):
        return  # an earlier master has seen it
    can = budgets.afford(charges.balance(desk, kind))
    paid = BudgetCharge(
        kind=kind,
        job_seconds=desk.clock.job_seconds,
        incident_id=incident,
    )
    desk.record(paid, durable=True)
    desk.event(EventReason.BUDGET_CHARGED, f"nothing trains: {can.reason}", node=pod.node_rank)
    if not can.ok:
        desk.event(EventReason.BUDGET_EXHAUSTED, can.reason, Warn)
        reason = budgets.END_REASONS[kind]
        desk.request_end(succeeded=False, reason=reason, text=f"{can.reason}; the last was: {text}")
