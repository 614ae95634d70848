"""Choice between two agents that claim a node rank."""

from __future__ import annotations

import pytest

from holdfast_master.job.state.membership import Node
from holdfast_master.job.takeover.hello import Arrival, Knowledge, judge_arrival
from holdfast_wire.messages import Hello

OLD, NEW = ("p1", "a1"), ("p2", "a2")
"""Pod and agent."""
SAME_POD = ("p1", "a9")

TABLE = [
    (None, NEW, Knowledge(), Arrival.NEW),
    (OLD, OLD, Knowledge(), Arrival.RETURNED),
    # the operator cannot tell: the newest hello wins
    (OLD, NEW, Knowledge(), Arrival.SUCCESSOR),
    # the operator knows the newcomer's pod
    (OLD, NEW, Knowledge(newest_pod="p2"), Arrival.SUCCESSOR),
    # the operator knows that the incumbent's pod is the newest
    (OLD, NEW, Knowledge(newest_pod="p1"), Arrival.OUTDATED),
    # the agent was started again inside its pod
    (OLD, SAME_POD, Knowledge(newest_pod="p1"), Arrival.SUCCESSOR),
    # a pod that was followed by another comes back, be the rank free or not
    (None, OLD, Knowledge(superseded=True), Arrival.OUTDATED),
    (NEW, OLD, Knowledge(superseded=True), Arrival.OUTDATED),
    # an agent that was told to leave comes back
    (None, OLD, Knowledge(dismissed=True), Arrival.OUTDATED),
    # its words come after the end of its pod
    (None, OLD, Knowledge(ended="p1"), Arrival.OUTDATED),
    (OLD, OLD, Knowledge(ended="p1"), Arrival.OUTDATED),
    (OLD, NEW, Knowledge(ended="p1"), Arrival.SUCCESSOR),
    # the operator's newest pod has not said hello yet, this one is neither old nor known
    (OLD, NEW, Knowledge(newest_pod="p3"), Arrival.SUCCESSOR),
]


def _node(pod_uid: str, agent_id: str) -> Node:
    return Node(
        rank=0,
        pod_uid=pod_uid,
        agent_id=agent_id,
        local_world_size=1,
        hello=None,
        session=None,
        last_heard=0.0,
        disconnected_at=0.0,
        heartbeat=0.5,
    )


@pytest.mark.parametrize(("incumbent", "hello", "knowledge", "arrival"), TABLE)
def test_who_holds_the_rank(
    incumbent: tuple[str, str] | None,
    hello: tuple[str, str],
    knowledge: Knowledge,
    arrival: Arrival,
) -> None:
    """The operator's newest pod wins; without its word the newest hello."""
    node = None if incumbent is None else _node(*incumbent)
    found, reason = judge_arrival(node, Hello(pod_uid=hello[0], agent_id=hello[1]), knowledge)
    assert found is arrival
    assert reason
