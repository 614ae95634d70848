"""Pod observations of the operator, as evidence about the nodes whose agents run in them.

A pod may end before its agent joins: a wrong command, a missing program, a broken node.
"""

from __future__ import annotations

from holdfast_master.job.incidents import incidents
from holdfast_master.job.nodes import eligibility, liveness, notices, replacement, rule_actions
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import RELEASED
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.operator_view import OperatorView, is_over
from holdfast_master.job.state.phases import OVER
from holdfast_master.job.state.timers import Timer, Timers
from holdfast_master.job.state.wording import pod_end
from holdfast_master.policies import failure
from holdfast_master.policies.failure import TAKEN, Evidence, EvidenceKind
from holdfast_master.policies.pod_ends import exit_code, pod_kind
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EndReason, EventReason


def pod_seen(job: JobContext, pod: wire.PodObservation) -> None:
    """Take the operator's observation of a pod as evidence about its node."""
    view = job.operator
    if view.is_old(pod):
        _late(job, pod)
        return
    view.note(pod)
    replacement.settle(job, pod)
    _settle_rejoin(job.timers, pod)
    _doubt(job, pod)
    job.touch(Change.POD_SEEN)
    node = job.membership.nodes.get(pod.node_rank)
    if node is None:
        _late(job, pod)
        _check_early_end(job, pod)
    elif node.pod_uid == pod.pod_uid:
        _own_pod(job, node, pod)
    elif node.pod_uid in view.superseded.get(node.rank, ()):
        text = f"pod {node.pod_uid} of node {node.rank} was followed by {pod.pod_uid}"
        liveness.lose(job, node, EvidenceKind.AGENT_REPLACED, text)
    else:
        _late(job, pod)  # the agent of its next pod was faster than the operator


def pods_listed(job: JobContext) -> None:
    """Every pod has been named: pods and away nodes that were not do not exist."""
    view = job.operator
    view.list_done = True
    job.preflight.looked_after = None  # only now are the hosts of all nodes known
    for rank in sorted(set(view.pods) - view.listed):
        pod = view.pods[rank]
        if not is_over(pod):
            gone = wire.PodObservation(
                node_rank=rank,
                pod_uid=pod.pod_uid,
                name=pod.name,
                phase=wire.PodPhase.GONE,
                node=pod.node,
            )
            pod_seen(job, gone)
    for rank in sorted(job.membership.away - view.listed):
        node = job.membership.nodes[rank]
        if node.hello is None or not node.hello.unmanaged:
            text = f"the pod of node {rank} does not exist"
            liveness.lose(job, node, EvidenceKind.PREEMPTED, text)
    job.touch(Change.PODS_LISTED)


def _settle_rejoin(timers: Timers, pod: wire.PodObservation) -> None:
    """A container that was to start again does not, or has a new pod: nobody waits for it."""
    if is_over(pod) or pod.terminating or not pod.ends:
        timers.cancel(Timer.REJOIN, subject=pod.node_rank)


def rejoin_due(job: JobContext, rank: int) -> None:
    """A container was started again, and its agent has not come."""
    pod = job.operator.pods.get(rank)
    job.touch(Change.REJOIN_DUE)
    if pod is None or rank in job.membership.nodes or not job.operator.is_coming(rank):
        return
    limit = job.settings.rejoin_seconds
    text = f"its container was started again, and no agent has joined within {limit:g} s"
    replacement.ask(job, rank, pod.pod_uid, text)


def _doubt(job: JobContext, pod: wire.PodObservation) -> None:
    """A node that answers nothing may have been lost together with the master before this one."""
    if pod.unreachable:
        until = job.now + job.settings.adopt_seconds
        job.timers.ensure(Timer.UNREACHABLE, until, pod.node_rank)
    else:
        job.timers.cancel(Timer.UNREACHABLE, subject=pod.node_rank)


def unreachable_due(job: JobContext, rank: int) -> None:
    """A node answers nothing, and its agent has not come; one that is known is judged as ever."""
    view = job.operator
    if rank in view.unreachable and rank not in job.membership.nodes and view.is_coming(rank):
        text = "its Kubernetes node does not answer"
        replacement.ask(job, rank, view.pods[rank].pod_uid, text)


def _own_pod(job: JobContext, node: Node, pod: wire.PodObservation) -> None:
    if pod.notice is not None and not is_over(pod) and not pod.terminating:
        notices.received(job, node, pod.notice)
    if is_over(pod):
        liveness.lose(job, node, pod_kind(pod), pod_end(pod), pod=pod)
    elif pod.terminating:
        text = f"node {node.rank} leaves: its pod is deleted"
        liveness.drain(job, node, taken_kind(job.operator, node), text)
    elif pod.ends > node.pod_ends and node.session is None:
        # With a stream it may be the next agent's, which was faster than the operator.
        liveness.lose(job, node, pod_kind(pod), pod_end(pod), pod=pod)
    elif pod.ends > node.pod_ends:
        _explain(job, node, pod)
    else:
        eligibility.refresh(job, node)


def _explain(job: JobContext, node: Node, pod: wire.PodObservation) -> None:
    """The pod's container has ended; if its next agent is there, it is known now how."""
    gone = job.state.departed.get(node.rank)
    if gone is None or gone.pod_uid != pod.pod_uid:
        node.pod_ended_at = job.now  # the stream is about to break, then
        return
    node.pod_ends = pod.ends
    incidents.report_late(job, _end_of(pod, gone.agent_id, job.now), node.rank)


def _end_of(pod: wire.PodObservation, agent_id: str, now: float) -> Evidence:
    """A pod's end, of which its agent cannot tell."""
    return Evidence(
        kind=pod_kind(pod),
        text=pod_end(pod),
        at=now,
        node_rank=pod.node_rank,
        agent_id=agent_id,
        exit_code=exit_code(pod),
        conditions=pod.conditions,
    )


def taken_kind(operator: OperatorView, node: Node) -> EvidenceKind:
    """The kind of a requested end: wanted by a person, or by somebody else."""
    pod = operator.pods.get(node.rank)
    wanted = pod is not None and pod.pod_uid == node.pod_uid and pod.wanted
    replacing = operator.replacing.get(node.rank)
    replaced = replacing is not None and replacing.pod_uid == node.pod_uid
    return EvidenceKind.NODE_REMOVED if wanted or replaced else EvidenceKind.PREEMPTED


def _late(job: JobContext, pod: wire.PodObservation) -> None:
    gone = job.state.departed.get(pod.node_rank)
    if gone is None or gone.pod_uid != pod.pod_uid or not is_over(pod):
        return
    if pod.wanted and pod.pod_uid in job.operator.asked:
        return  # it was lost first, and is deleted because of that
    item = _end_of(pod, gone.agent_id, job.now)
    released = job.state.dismissed.get(gone.agent_id) == RELEASED
    if released and item.kind is not EvidenceKind.PREEMPTED:
        return  # it left as it was told
    incidents.report_late(job, item, pod.node_rank)


# ------------------------------------------------------------------ ends before the agent joined


def _check_early_end(job: JobContext, pod: wire.PodObservation) -> None:
    """Judge a pod that ended by itself before its agent had joined."""
    state = job.state
    gone = state.departed.get(pod.node_rank)
    joined = gone is not None and gone.pod_uid == pod.pod_uid
    if joined or not is_over(pod):
        return
    # One that was being deleted proves nothing; an operator that is new does not know by whom.
    if pod.wanted or pod.terminating or pod.pod_uid in job.operator.ended_early:
        return
    if state.phase in OVER | {wire.JobPhase.SUSPENDED}:
        return
    if pod.phase is wire.PodPhase.SUCCEEDED:
        seen_whole = job.operator.list_done or not job.timers.running(Timer.ADOPT)
        if job.worlds.running() is None and seen_whole:
            _no_agent(job, pod)
        return
    _judge_early_end(job, pod)


def _judge_early_end(job: JobContext, pod: wire.PodObservation) -> None:
    """Tell people of it, and do what the rules and the budget say."""
    job.operator.note_early_end(pod.pod_uid)
    text = pod_end(pod, "before its agent joined")
    job.out.warn(EventReason.POD_FAILED, text, node=pod.node_rank)
    if any(charge.incident_id == _incident(pod) for charge in job.state.charges):
        return  # an earlier master has judged it
    # A master that may not know of a running world does not know which pods' agents had joined: not
    # of those that were over before its operator came, for the rules; nor, for the budget, of those
    # that were there before. Every master in a cluster begins like that, and one that no agent ever
    # joins stays so.
    waits, adopts = job.worlds.running() is None, job.timers.running(Timer.ADOPT)
    if not job.operator.list_done and (adopts or not waits):
        return
    # The operator makes another pod in any case.
    response = failure.respond(_end_of(pod, "", job.now), job.spec.failure_rules)
    if response.action is wire.FailureAction.FAIL_JOB:
        why = f"{response.reason}: {text}"
        job.request_end(succeeded=False, reason=EndReason.FAIL_JOB_RULE, text=why)
        return
    if response.action is wire.FailureAction.REPLACE_ON_OTHER_NODE:
        rule_actions.exclude(job, pod.node_rank, response.reason)
    inherited = adopts and pod.pod_uid in job.operator.inherited
    if waits and not inherited and response.action is not wire.FailureAction.IGNORE:
        _charge(job, pod, text)


def _no_agent(job: JobContext, pod: wire.PodObservation) -> None:
    """The command ran to its end without an agent: it would do so in each new pod."""
    job.operator.note_early_end(pod.pod_uid)
    text = (
        f"{pod_end(pod, 'before its agent joined')}: does its command start one? Begin it with "
        "holdfast-run, or with torchrun --rdzv-backend=holdfast"
    )
    job.out.warn(EventReason.POD_FAILED, text, node=pod.node_rank)


def _incident(pod: wire.PodObservation) -> str:
    return f"pod {pod.pod_uid}"


def _charge(job: JobContext, pod: wire.PodObservation, text: str) -> None:
    """Nothing trains, and this is why: it counts as a restart without progress.

    A pod that its node turned away or took down is no try of the script's: that is a preemption.
    """
    kind = wire.BudgetKind.PREEMPTIONS if pod_kind(pod) in TAKEN else wire.BudgetKind.NO_PROGRESS
    can = failure.afford(incidents.balance(job, kind))
    seconds = job.clock.job_seconds
    paid = wire.BudgetCharge(kind=kind, job_seconds=seconds, incident_id=_incident(pod))
    job.out.record(paid, durable=True)
    job.out.event(EventReason.BUDGET_CHARGED, f"nothing trains: {can.reason}", node=pod.node_rank)
    if not can.ok:
        job.out.warn(EventReason.BUDGET_EXHAUSTED, can.reason)
        reason = failure.END_REASONS[kind]
        job.request_end(succeeded=False, reason=reason, text=f"{can.reason}; the last was: {text}")
