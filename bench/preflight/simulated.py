"""Clusters from seeds: the shipped policy judges figures that are drawn, round by round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast_master.policies.preflight.rounds import judge
from holdfast_wire.resources import Resource
from nodes.simulated_nodes import COMPUTE, NETWORK, Cluster, Fault

SEEDS: Mapping[int, int] = {16: 400, 256: 40, 4096: 4}
"""Clusters by number of nodes, for each fault and number of bad nodes."""
BAD: Mapping[int, tuple[int, ...]] = {16: (1, 3), 256: (1, 3, 16), 4096: (1, 3, 256)}
"""Numbers of bad nodes by number of nodes."""
MEMORY = frozenset({Resource.MEMORY_BANDWIDTH})
FAULTS: Mapping[str, Callable[[random.Random], Fault]] = {
    "slow CPU": lambda draw: Fault(COMPUTE, draw.uniform(0.25, 0.6)),
    "slow memory": lambda draw: Fault(MEMORY, draw.uniform(0.2, 0.55)),
    "slow network": lambda draw: Fault(NETWORK, draw.uniform(0.05, 0.3)),
    "dead": lambda draw: Fault(dead_from=draw.choice([0, 1])),
}
"""What is left of the speed, or the round from which the node says nothing."""
Line = dict[str, Any]


def lines(least: int = 1) -> Iterator[Line]:
    """Judge all clusters; yield a line for each size, fault and number of bad nodes.

    Args:
        least: Divides the number of seeds, for a short run.
    """
    for size, seeds in SEEDS.items():
        count = max(1, seeds // least)
        yield _tally(size, "none", 0, count)
        for fault in FAULTS:
            for bad in BAD[size]:
                yield _tally(size, fault, bad, count)


def _tally(size: int, fault: str, bad: int, seeds: int) -> Line:
    named = wrong = 0
    rounds = list[tuple[int, int]]()
    for seed in range(seeds):
        dice = random.Random(f"{size} {fault} {bad} {seed}")
        planted = {
            f"n{at}": FAULTS[fault](dice) for at in (dice.sample(range(size), bad) if bad else ())
        }
        cluster = Cluster(size, planted, seed)
        check = cluster.check()
        found = set(judge(check).bad())
        named += len(found & planted.keys())
        wrong += len(found - planted.keys())
        rounds.append((len(cluster.rounds) - check.pair_rounds, check.pair_rounds))
    return {
        "what": "simulated",
        "nodes": size,
        "fault": fault,
        "clusters": seeds,
        "bad": bad * seeds,
        "named": named,
        "healthy": (size - bad) * seeds,
        "wrong": wrong,
        "alone_rounds": max(alone for alone, _ in rounds),
        "pair_rounds": max(pairs for _, pairs in rounds),
    }
