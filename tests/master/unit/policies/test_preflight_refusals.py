"""Preflight where nodes refuse a part, or nobody answers: nobody is accused for another one."""

from __future__ import annotations

import pytest

from holdfast_master.policies.preflight.figures import FigureReport, Participant
from holdfast_master.policies.preflight.rounds import begin, conclude, judge
from holdfast_master.policies.preflight.verdicts import NodeVerdict
from nodes.simulated_nodes import NOBODY_THERE, Cluster, Fault


@pytest.mark.parametrize("end", ["serves", "joins"])
def test_a_node_that_refuses_says_nothing_of_its_partner(end: str) -> None:
    """The other end finds nobody there, or is never asked: neither is a fault of either node.

    Nobody else can measure the network with it, so it is undecided as well.
    """
    cluster = Cluster(2, {})
    check = begin(1, [Participant(node=node) for node in cluster.nodes])
    check = conclude(check, cluster.answers(check))
    assert check.current is not None
    (pair,) = check.current.pairs
    refuses = getattr(pair, end)
    refusal = FigureReport(
        round=check.current.id, node=refuses, partner=pair.other(refuses), refused="ranks run here"
    )
    alone = cluster.report(check.current.id, pair.serves, pair.joins, NOBODY_THERE)
    answers = [refusal] if end == "serves" else [refusal, alone]
    check = conclude(check, answers, [pair.joins] if end == "serves" else [])
    outcome = judge(check)
    assert outcome.bad() == ()
    assert outcome.nodes[refuses].verdict is NodeVerdict.UNDECIDED
    assert outcome.nodes[refuses].reason == "round 1: ranks run here"
    assert check.current is None
    other = outcome.nodes[pair.other(refuses)]
    assert other.verdict is NodeVerdict.UNDECIDED
    assert other.reason.endswith("its partner could not measure")


@pytest.mark.parametrize("size", [4, 5, 16])
def test_the_partner_of_a_node_that_refuses_measures_with_another_one(size: int) -> None:
    """Nobody waits once more for the node that refused."""
    cluster = Cluster(size, {"n0": Fault(refuses_from=1)})
    outcome = cluster.outcome()
    assert len([pair for pair in cluster.pairs if "n0" in pair]) == 1
    verdicts = {node: one.verdict for node, one in outcome.nodes.items()}
    assert verdicts.pop("n0") is NodeVerdict.UNDECIDED
    assert set(verdicts.values()) == {NodeVerdict.HEALTHY}


@pytest.mark.parametrize("size", [2, 4])
def test_a_round_of_pairs_that_nobody_answers_accuses_nobody(size: int) -> None:
    """Those that join were never asked, as nobody listened: the cause is shared."""
    cluster = Cluster(size, {})
    check = begin(1, [Participant(node=node) for node in cluster.nodes])
    check = conclude(check, cluster.answers(check))
    assert check.current is not None
    check = conclude(check, [], [pair.joins for pair in check.current.pairs])
    outcome = judge(check)
    assert outcome.bad() == ()
    reasons = [outcome.nodes[node].reason for node in check.silent]
    assert len(reasons) == size // 2
    assert all("no node answered" in reason for reason in reasons)
