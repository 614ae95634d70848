"""Random schedules of faults: whatever happens, every invariant holds and the job comes back.

Two thousand seeds, 300 of them in `make test`, each a scenario of its own. A failing one is
shrunk; the message has the seed, the invariant, and the minimal scenario as code to paste into a
test of its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from house.extended import usual
from simulation.run import run
from simulation.scenario import Scenario, announced, draw
from simulation.shrink import report

SEEDS = 2_000
PER_TEST = 50
PER_TEST_LARGE = 10
MORE = pytest.mark.extended(
    "more seeds: each of `make test` may find what these find",
    held_by=[
        "simulation/test_seeds.py::test_a_job_survives_whatever_happens",
        "simulation/test_planted_bugs.py::test_a_planted_bug_is_found",
    ],
)


CROWD = pytest.mark.extended(
    "ten times as many nodes",
    held_by=[
        "simulation/test_seeds.py::test_a_crowd_survives",
        "simulation/test_ten_thousand.py::test_a_thousand_ranks_are_judged_without_holding_the_master_up",
    ],
)


def _seeds(last: int, *, usual: int) -> list[Any]:
    """Return the first seed of each test: the first test is fast, those beyond `usual` more."""
    slow = [
        pytest.param(first, marks=[pytest.mark.slow, *([MORE] if first >= usual else [])])
        for first in range(PER_TEST, last, PER_TEST)
    ]
    return [0, *slow]


def check(seed: int, **sizes: int) -> None:
    """Run a seed; fail with its smallest scenario."""
    _check(draw(seed, **sizes))


def _check(scenario: Scenario) -> None:
    outcome = run(scenario)
    if not outcome.ok:
        pytest.fail(report(outcome), pytrace=False)


@pytest.mark.parametrize("first", _seeds(SEEDS, usual=300))
def test_a_job_survives_whatever_happens(first: int) -> None:
    """One to twelve nodes, three to sixteen faults; about 25 ms each."""
    for seed in range(first, first + PER_TEST):
        check(seed)


@pytest.mark.parametrize("first", _seeds(1000, usual=150))
def test_a_job_survives_what_clouds_announce(first: int) -> None:
    """The same schedules, with notice given of each eviction, drain and departure."""
    for seed in range(first, first + PER_TEST):
        scenario = announced(draw(seed))
        if any(fault.what == "notice" for fault in scenario.faults):
            _check(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, PER_TEST_LARGE))
def test_sixteen_nodes_survive_thirty_faults(first: int) -> None:
    """The size by which the speed of the simulation is judged."""
    for seed in range(first, first + PER_TEST_LARGE):
        check(seed, nodes=16, faults=30)


def test_a_hundred_faults_in_one_life() -> None:
    """Rounds only grow, charges are only forgotten by progress, and it ends well."""
    check(11, nodes=6, faults=100)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", usual([100, 1000], 100, more=CROWD))
def test_a_crowd_survives(nodes: int) -> None:
    """Nothing in the rules depends on the number being small."""
    check(1, nodes=nodes, faults=6)


@pytest.mark.parametrize("first", _seeds(500, usual=150))
def test_a_job_of_replicas_survives_whatever_happens(first: int) -> None:
    """The same schedules under local SGD: each unit of nodes is a replica with a world of its own.

    Rosters agree, who goes on is left as it was, and all replicas are together at the end.
    """
    for seed in range(first, first + PER_TEST):
        scenario = draw(seed)
        _check(dataclasses.replace(scenario, nodes_per_replica=scenario.unit))
