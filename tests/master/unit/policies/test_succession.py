"""Choice between two agents that claim a node rank."""

from __future__ import annotations

import pytest

from holdfast_master.policies.succession import Claim, Knowledge, Standing, decide

OLD, NEW = Claim("p1", "a1"), Claim("p2", "a2")
SAME_POD = Claim("p1", "a9")

TABLE = [
    (None, NEW, Knowledge(), Standing.NEW),
    (OLD, OLD, Knowledge(), Standing.RETURNED),
    # the operator cannot tell: the newest hello wins
    (OLD, NEW, Knowledge(), Standing.SUCCESSOR),
    # the operator knows the newcomer's pod
    (OLD, NEW, Knowledge(newest_pod="p2"), Standing.SUCCESSOR),
    # the operator knows that the incumbent's pod is the newest
    (OLD, NEW, Knowledge(newest_pod="p1"), Standing.OUTDATED),
    # the agent was started again inside its pod
    (OLD, SAME_POD, Knowledge(newest_pod="p1"), Standing.SUCCESSOR),
    # a pod that was followed by another comes back, be the rank free or not
    (None, OLD, Knowledge(superseded=frozenset({"p1"})), Standing.OUTDATED),
    (NEW, OLD, Knowledge(superseded=frozenset({"p1"})), Standing.OUTDATED),
    # an agent that was told to leave comes back
    (None, OLD, Knowledge(dismissed=frozenset({"a1"})), Standing.OUTDATED),
    # its words come after the end of its pod
    (None, OLD, Knowledge(ended="p1"), Standing.OUTDATED),
    (OLD, OLD, Knowledge(ended="p1"), Standing.OUTDATED),
    (OLD, NEW, Knowledge(ended="p1"), Standing.SUCCESSOR),
    # the operator's newest pod has not said hello yet, this one is neither old nor known
    (OLD, NEW, Knowledge(newest_pod="p3"), Standing.SUCCESSOR),
]


@pytest.mark.parametrize(("incumbent", "hello", "knowledge", "standing"), TABLE)
def test_who_holds_the_rank(
    incumbent: Claim | None, hello: Claim, knowledge: Knowledge, standing: Standing
) -> None:
    """The operator's newest pod wins; without its word the newest hello."""
    verdict = decide(incumbent, hello, knowledge)
    assert verdict.standing is standing
    assert verdict.reason
