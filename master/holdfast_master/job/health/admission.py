"""Admission of checked nodes: what the outcome of a check means for each of them.

Under `Report` every node joins. Under `Act` a node that is slow or faulty stays outside. Its host
is excluded and another pod is asked for, up to three agents in a row: after that, it is not the
hosts. Where too few nodes would be left and nobody makes another, it joins all the same: a slow job
is better than none. "Undecided" accuses nobody, so such a node joins.
"""

from __future__ import annotations

from typing import Final

from holdfast_master.job.health import references
from holdfast_master.job.incidents import strikes
from holdfast_master.job.nodes import eligibility, liveness, replacement, rule_actions
from holdfast_master.job.state.changes import Change
from holdfast_master.job.state.context import JobContext
from holdfast_master.job.state.health import CheckedNode, OpenCheck, preflight_mode
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.wording import nodes_named
from holdfast_master.policies.failure import EvidenceKind
from holdfast_master.policies.preflight import rounds
from holdfast_master.policies.preflight.references import forget
from holdfast_master.policies.preflight.rounds import CheckOutcome
from holdfast_master.policies.preflight.verdicts import BAD, NodeFinding, NodeVerdict
from holdfast_master.policies.quantities import verb
from holdfast_wire.messages import HealthMode, NodeJudged
from holdfast_wire.reasons import EventReason
from holdfast_wire.strikes import StrikeCause

MOST_IN_A_ROW: Final = 3
"""Agents of one node rank in a row that are replaced because of their check."""


def is_healthy(state: JobState, node: Node) -> bool:
    """Whether this agent's check found it healthy."""
    judged = state.judged_agent(node.rank, node.agent_id)
    return judged is not None and judged.verdict == NodeVerdict.HEALTHY.name


def settle(job: JobContext, own: OpenCheck) -> None:
    """Judge the nodes of a check that is over; one that is away will be checked again."""
    outcome = rounds.judge(own.check)
    _learn(job, own, outcome)
    present = [
        (node, finding)
        for name, finding in outcome.nodes.items()
        if (node := _present(job, own, name)) is not None
    ]
    good = [(node, finding) for node, finding in present if finding.verdict not in BAD]
    for node, finding in good:
        _judge(job, node, finding, admitted=True)
    _report_good(job, good)
    bad = [(node, finding) for node, finding in present if finding.verdict in BAD]
    for node, finding in bad:
        _settle_bad(job, node, finding)
    for link in outcome.links:
        ranks = sorted(own.nodes[name].rank for name in link.pair)
        text = f"between {nodes_named(ranks)}: {link.reason}"
        job.out.warn(EventReason.PREFLIGHT_LINK_SLOW, text)
    job.touch(Change.PREFLIGHT_OVER)


def _present(job: JobContext, own: OpenCheck, name: str) -> Node | None:
    checked = own.nodes[name]
    node = job.membership.agent(checked.rank, checked.agent_id)
    return node if node is not None and node.session is not None else None


def _learn(job: JobContext, own: OpenCheck, outcome: CheckOutcome) -> None:
    before = own.check.references
    after = rounds.references_after(own.check, outcome)
    ranks = {node.rank for node in own.nodes.values()}
    # Another machine has the rank now: what the one before reached says nothing about it.
    moved = {
        node
        for node, _ in before.own
        if node not in own.nodes and int(node.partition(" ")[0]) in ranks
    }
    fact = references.learned(before, forget(after, moved), moved)
    if fact is not None:
        job.out.record(fact)


def _judge(job: JobContext, node: Node, finding: NodeFinding, *, admitted: bool) -> None:
    fact = NodeJudged(
        node_rank=node.rank,
        agent_id=node.agent_id,
        verdict=finding.verdict.name,
        reason=finding.reason,
        admitted=admitted,
        bad_in_a_row=_in_a_row(job.state, node) if finding.verdict in BAD else 0,
        unix_time=job.clock.moment.unix,
    )
    job.preflight.suspects.pop(CheckedNode(node.rank, node.agent_id), None)
    job.out.record(fact, durable=True)
    eligibility.refresh(job, node)


def _in_a_row(state: JobState, node: Node) -> int:
    """Return how many agents of this node rank in a row are bad, this one included."""
    before = state.judged.get(node.rank)
    if before is None:
        return 1
    return before.bad_in_a_row + (1 if before.agent_id != node.agent_id else 0) or 1


def _report_good(job: JobContext, good: list[tuple[Node, NodeFinding]]) -> None:
    healthy = [node.rank for node, finding in good if finding.verdict is NodeVerdict.HEALTHY]
    if healthy:
        text = f"{nodes_named(healthy)} {verb(len(healthy), 'is', 'are')} healthy"
        job.out.event(EventReason.PREFLIGHT_PASSED, text)
    for node, finding in good:
        if finding.verdict is not NodeVerdict.HEALTHY:
            text = f"node {node.rank} is undecided and may join: {finding.reason}"
            job.out.event(EventReason.PREFLIGHT_PASSED, text, node=node.rank)


def _settle_bad(job: JobContext, node: Node, finding: NodeFinding) -> None:
    what = f"node {node.rank} is {finding.verdict.name.lower()}: {finding.reason}"
    if preflight_mode(job.state.spec) is not HealthMode.ACT:
        _judge(job, node, finding, admitted=True)
        _report_bad(job, node, f"{what}; it joins, as mode Report only says so")
        return
    _judge(job, node, finding, admitted=False)
    if _in_a_row(job.state, node) <= MOST_IN_A_ROW and _replaced(job, node, what):
        return
    if job.bounds.fit(len(job.membership.candidates)):
        _report_bad(job, node, f"{what}; it stays outside, and no other pod is asked for")
        return
    _judge(job, node, finding, admitted=True)
    _report_bad(job, node, f"{what}; it joins all the same, as too few nodes are left without it")


def _replaced(job: JobContext, node: Node, what: str) -> bool:
    """Have the node leave and another one come; False: nobody makes another."""
    host = job.operator.host_of(node.rank)
    why = "it failed the check before it joined"
    if not replacement.ask(job, node.rank, node.pod_uid, why, avoid_node=host):
        return False
    _report_bad(job, node, f"{what}; it stays outside and is replaced")
    why_there = f"node {node.rank} failed the check there"
    # Nodes of the job on the same host are judged by themselves: they stay.
    rule_actions.exclude(job, node.rank, why_there, others_leave=False)
    node.condemned = True
    liveness.drain(job, node, EvidenceKind.DRAINED, f"node {node.rank} is replaced: {why}")
    return True


def _report_bad(job: JobContext, node: Node, text: str) -> None:
    strikes.strike(job, node.rank, StrikeCause.PREFLIGHT, text)
    job.out.warn(EventReason.PREFLIGHT_FAILED, text, node=node.rank)
