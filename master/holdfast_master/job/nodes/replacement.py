"""Requests to the operator about pods: make one anew, release one."""

from __future__ import annotations

from holdfast_master.job.nodes import eligibility
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.job_state import RELEASED
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.operator_view import is_over
from holdfast_master.job.state.phases import OVER
from holdfast_master.job.state.wording import nodes_named
from holdfast_master.policies.quantities import verb
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason

REPLACE = "replace"


def ask(job: JobContext, rank: int, pod_uid: str, reason: str, avoid_node: str = "") -> bool:
    """Ask for a new pod of this node rank; True: it was asked now or before."""
    view = job.operator
    if not view.ever or rank >= job.wanted or job.state.phase in OVER | {wire.JobPhase.SUSPENDED}:
        return False
    if job.state.stop is not None:
        return False  # it ends, once what is in memory is on storage
    before = view.replacing.get(rank)
    if before is not None and before.pod_uid == pod_uid:
        return True
    number = job.out.command(REPLACE, rank)
    decision = wire.ReplaceDecision(
        decision_id=number, node_rank=rank, pod_uid=pod_uid, reason=reason, avoid_node=avoid_node
    )
    view.replacing[rank] = decision
    view.note_asked(rank, pod_uid)
    job.out.event(
        EventReason.REPLACE_REQUESTED, f"node {rank} is to be replaced: {reason}", node=rank
    )
    job.out.send_operator(decision)
    return True


def recall(job: JobContext, why: str) -> list[int]:
    """Nodes that were drained come back where their ranks are wanted; those that do."""
    back = []
    for rank, pod in sorted(job.operator.pods.items()):
        left = is_over(pod) and rank not in job.membership.nodes and rank not in job.state.finished
        if left and rank < job.wanted:
            known = rank in job.operator.replacing
            if ask(job, rank, pod.pod_uid, why) and not known:
                back.append(rank)
    return back


def settle(job: JobContext, pod: wire.PodObservation) -> None:
    """A pod was seen: a newer one of the rank is what was asked for."""
    decision = job.operator.replacing.get(pod.node_rank)
    if decision is None or decision.pod_uid == pod.pod_uid:
        return
    if job.operator.is_coming(pod.node_rank):
        del job.operator.replacing[pod.node_rank]
        job.out.record(wire.CommandFinished(command_id=decision.decision_id, ok=True))


def repeat(job: JobContext) -> None:
    """A new operator stream: say again what is still wanted."""
    for rank in sorted(job.operator.replacing):
        job.out.send_operator(job.operator.replacing[rank])
    for host, reason in job.state.excluded.items():  # the newest last: the oldest is forgotten
        job.out.send_operator(wire.ExcludeDecision(decision_id=0, node=host, reason=reason))
    for host in _lifted(job):
        text = "its rank was as slow elsewhere"
        job.out.send_operator(
            wire.ExcludeDecision(decision_id=0, node=host, reason=text, lifted=True)
        )
    ranks = tuple(sorted(job.state.released))
    if ranks:
        job.out.send_operator(
            wire.ReleaseDecision(decision_id=0, node_ranks=ranks, reason="released before")
        )


def _lifted(job: JobContext) -> list[str]:
    """The hosts whose exclusion was taken back: an operator that was away excludes them."""
    trials = job.state.straggler_trials.values()
    cleared = {one.host for one in trials if one.outcome is wire.StragglerOutcome.RANK and one.host}
    return sorted(cleared - job.state.excluded.keys())


def release(job: JobContext, nodes: list[Node], reason: str, *, free_pods: bool) -> None:
    """Tell agents to leave; `free_pods`: their pods are not wanted any more."""
    if not nodes:
        return
    ranks = sorted(node.rank for node in nodes)
    if free_pods:
        number = job.out.command("release", ranks[0])
        job.out.send_operator(
            wire.ReleaseDecision(decision_id=number, node_ranks=tuple(ranks), reason=reason)
        )
    for node in nodes:
        job.out.record(node.marked(RELEASED), durable=True)
        eligibility.refresh(job, node)
        job.out.leave(node, wire.LeaveOutcome.RELEASED, reason, job.settings.stop_grace_seconds)
    job.out.event(
        EventReason.NODE_RELEASED,
        f"{nodes_named(ranks)} {verb(len(ranks), 'is', 'are')} released: {reason}",
    )
