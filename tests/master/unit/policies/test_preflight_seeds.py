"""Preflight on many pretended clusters, each from a seed: how often the right nodes are named."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping

import pytest

from holdfast_master.policies.preflight.rounds import judge
from holdfast_master.policies.preflight.verdicts import NodeVerdict
from holdfast_wire.resources import Resource
from house.extended import usual
from nodes.simulated_nodes import COMPUTE, DISK, NETWORK, Cluster, Fault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "master/unit/policies/test_preflight_seeds.py::test_one_bad_node_is_named_in_99_of_100_clusters",
        "master/unit/policies/test_preflight_seeds.py::test_several_bad_nodes_are_named",
        "master/unit/policies/test_preflight_seeds.py::test_half_of_the_nodes_are_named",
    ],
)

SEEDS = {2: 200, 3: 200, 4: 200, 5: 200, 16: 100, 17: 100, 256: 10, 4096: 1}
"""Clusters by number of nodes; one check of 4,096 takes seconds, and has thousands of nodes to get
wrong."""
Draw = Callable[[random.Random], Fault]
FAULTS: Mapping[str, Draw] = {
    "slow compute": lambda draw: Fault(COMPUTE, draw.uniform(0.25, 0.6)),
    "slow link": lambda draw: Fault(NETWORK, draw.uniform(0.05, 0.3)),
    "slow disk": lambda draw: Fault(DISK, draw.uniform(0.02, 0.2)),
    "dead": lambda draw: Fault(dead_from=draw.choice([0, 1])),
    "hang": lambda draw: Fault(hangs=draw.choice([Resource.DISK_WRITE, Resource.CPU_MATMUL])),
}


@dataclasses.dataclass
class Tally:
    """Outcomes of many clusters."""

    clusters: int = 0
    right: int = 0
    """Exactly the bad nodes were named."""
    bad: int = 0
    named: int = 0
    wrong: int = 0
    """Healthy nodes that were named."""

    def add(self, bad: set[str], named: set[str]) -> None:
        """Count one cluster."""
        self.clusters += 1
        self.right += bad == named
        self.bad += len(bad)
        self.named += len(bad & named)
        self.wrong += len(named - bad)


def tally(size: int, count: int, draw: Draw) -> Tally:
    """Check one cluster for each seed, with `count` bad nodes; print what came out."""
    found = Tally()
    for seed in range(SEEDS[size]):
        dice = random.Random(seed)
        bad = {f"n{at}": draw(dice) for at in dice.sample(range(size), count)}
        outcome = Cluster(size, bad, seed).outcome()
        found.add(set(bad), set(outcome.bad()))
    print(f"{size} nodes, {count} bad: {found}")
    return found


@pytest.mark.parametrize("size", usual(SEEDS, 2, 3, 17, more=MORE))
@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_node_is_named_in_99_of_100_clusters(size: int, fault: str) -> None:
    """And with two nodes a slow link names nobody, since nothing tells whose it is."""
    found = tally(size, 1, FAULTS[fault])
    if (size, fault) == (2, "slow link"):
        assert (found.named, found.wrong) == (0, 0)
        return
    assert found.right >= 0.99 * found.clusters
    assert found.wrong == 0


@pytest.mark.parametrize("size", SEEDS)
def test_healthy_clusters_name_nobody(size: int) -> None:
    """A false alarm would cost a node."""
    found = tally(size, 0, lambda _: Fault())
    assert found.wrong == 0


@pytest.mark.parametrize("size", usual([16, 17, 256, 4096], 17, 256, more=MORE))
@pytest.mark.parametrize("fault", ["slow compute", "slow link", "slow disk", "hang"])
def test_several_bad_nodes_are_named(size: int, fault: str) -> None:
    """Three of them, also where two meet in the first round."""
    found = tally(size, 3, FAULTS[fault])
    assert found.named >= 0.99 * found.bad
    assert found.wrong == 0


@pytest.mark.parametrize("size", usual([4, 16, 256, 4096], 4, 256, more=MORE))
@pytest.mark.parametrize("fault", ["slow compute", "slow link", "slow disk"])
def test_half_of_the_nodes_are_named(size: int, fault: str) -> None:
    """What cannot be decided is undecided: no healthy node is named."""
    found = tally(size, size // 2, FAULTS[fault])
    assert found.named >= 0.97 * found.bad
    assert found.wrong == 0


@pytest.mark.parametrize("size", [16, 256])
def test_more_than_half_bad_links_name_no_healthy_node(size: int) -> None:
    """Three quarters of the nodes are slow: nobody is named who is not."""
    found = tally(size, 3 * size // 4, FAULTS["slow link"])
    assert found.wrong == 0


def test_one_check_of_4096_nodes_has_three_rounds() -> None:
    """Rounds do not grow with the number of nodes."""
    cluster = Cluster(4096, {"n77": Fault(NETWORK, 0.1)})
    outcome = judge(cluster.check())
    assert len(cluster.rounds) == 3
    assert outcome.nodes["n77"].verdict is NodeVerdict.SLOW
