"""Replicas in step of which one is slow: named with its node, and no longer once it is as fast."""

from __future__ import annotations

from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob
from simulation.steered.replicas import replicated

POLICY = wire.StragglerPolicy(
    mode=wire.HealthMode.REPORT, slowdown_percent=20, window_steps=50, votes=2, votes_out_of=3
)


def works(job: SteeredJob, seconds: dict[int, float]) -> None:
    """Say what a micro-batch takes the ranks of a node from now on, by node."""
    for rank, one in seconds.items():
        current = job.agents[rank].workers.current
        assert current is not None
        current.slot.work_ns = round(one * 1e9)


def test_a_slow_replica_is_named_until_it_is_as_fast_as_the_others() -> None:
    """In events and in the answer of `holdfast health`, with the time of each rank."""
    job = replicated(3, health=wire.HealthPolicy(straggler=POLICY))
    works(job, {0: 0.1, 1: 0.15, 2: 0.1})
    job.run(60.0)
    [text] = job.texts("StragglerFound")
    assert "replica 2 (node 1) works 0.15 s on a micro-batch, 50 % longer than the other" in text
    found = job.core.health(job.moment())
    assert [one.node for one in found.slow] == ["1"]
    assert [round(one.lag_seconds, 3) for one in found.ranks] == [0, 0.05, 0]
    assert found.not_judged == ""
    assert job.status.health is wire.HealthReason.STRAGGLER
    works(job, {1: 0.1})
    job.run(60.0)
    assert len(job.texts("StragglerGone")) == 1
    assert job.core.health(job.moment()).slow == ()


def test_of_a_replica_on_two_nodes_no_node_is_accused() -> None:
    """They wait for each other in each step: which one is slow cannot be told."""
    job = replicated(4, nodes_per_replica=2, health=wire.HealthPolicy(straggler=POLICY))
    works(job, {0: 0.1, 1: 0.1, 2: 0.2, 3: 0.2})
    job.run(60.0)
    [text] = job.texts("StragglerFound")
    assert "replica 2 (nodes [2, 3])" in text
    assert [(one.subject, one.node) for one in job.core.health(job.moment()).slow] == [("rank", "")]


def test_two_slow_replicas_on_several_nodes_are_told_apart() -> None:
    """Their ranks have the same numbers: the second one is news as well."""
    job = replicated(8, nodes_per_replica=2, health=wire.HealthPolicy(straggler=POLICY))
    works(job, dict.fromkeys(range(8), 0.1) | {2: 0.2, 3: 0.2})
    job.run(60.0)
    works(job, {4: 0.2, 5: 0.2})
    job.run(60.0)
    named = [text.split(" (")[0] for text in job.texts("StragglerFound")]
    assert named == ["replica 2", "replica 3"]


def test_a_verdict_ends_with_the_replicas_that_it_compares() -> None:
    """One that is left alone is slower than nobody."""
    job = replicated(2, health=wire.HealthPolicy(straggler=POLICY))
    works(job, {0: 0.1, 1: 0.2})
    job.run(60.0)
    assert len(job.core.health(job.moment()).slow) == 1
    works(job, {0: 0.0})
    job.run(5.0)
    assert job.core.health(job.moment()).slow == ()


def test_replicas_that_tell_no_work_are_not_judged() -> None:
    """As under local SGD, where each has steps of its own."""
    job = replicated(3, health=wire.HealthPolicy(straggler=POLICY))
    job.run(60.0)
    assert job.texts("StragglerFound") == []
    assert (
        "replicas are compared where they train in step" in job.core.health(job.moment()).not_judged
    )


def test_without_a_straggler_policy_nobody_is_compared() -> None:
    """Mode Disabled: no event, whatever the ranks tell."""
    job = replicated(2)
    works(job, {0: 0.1, 1: 0.5})
    job.run(60.0)
    assert job.texts("StragglerFound") == []
