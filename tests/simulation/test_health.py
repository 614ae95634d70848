"""Nodes that are slow, hang, wear out or have wrong clocks: who is named, and who is not.

Whatever else goes wrong, nobody healthy is accused. Where nothing else does, whoever is slow or
hangs is named in time with the right cause; `simulation.oracle.health` has the bounds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast_master.policies.hang_response import HangKind
from house.extended import usual
from simulation.found.health import FOUND
from simulation.run import run
from simulation.sampling import HANGS
from simulation.scenario import Fault, Scenario, acting, ailing, draw
from simulation.shrink import report

pytestmark = pytest.mark.slow  # each runs dozens of jobs

PER_TEST = 25
MORE = pytest.mark.extended(
    "more seeds: each of `make test` may find what these find",
    held_by=[
        "simulation/test_health.py::test_who_is_ill_is_named_and_nobody_else",
        "simulation/test_health.py::test_who_is_ill_leaves_and_the_job_goes_on",
        "simulation/test_planted_bugs.py::test_a_planted_bug_is_found",
    ],
)


@pytest.mark.parametrize("first", usual(range(0, 300, 25), *range(0, 100, 25), more=MORE))
def test_who_is_ill_is_named_and_nobody_else(first: int) -> None:
    """One to twelve nodes, one to three ailments, some other faults; about 80 ms each."""
    named = 0
    for seed in range(first, first + PER_TEST):
        outcome = run(ailing(draw(seed)))
        if not outcome.ok:
            pytest.fail(report(outcome), pytrace=False)
        named += outcome.named.total()
    assert named >= PER_TEST / 5, "the masters had an excuse nearly always"


@pytest.mark.parametrize("first", usual(range(0, 200, 25), *range(0, 75, 25), more=MORE))
def test_who_is_ill_leaves_and_the_job_goes_on(first: int) -> None:
    """Under Act: slow nodes are excluded where that gains, hangs end, nobody else pays for it."""
    done: Counter[str] = Counter()
    for seed in range(first, first + PER_TEST):
        outcome = run(acting(draw(seed)))
        if not outcome.ok:
            pytest.fail(report(outcome), pytrace=False)
        done += outcome.named
    assert done["EXCLUDED"] > 2
    assert done["HUNG"] > 2


def calm(seed: int, nodes: int, fault: Fault) -> Scenario:
    """Return a scenario in which nothing else happens, and the world never grows."""
    return Scenario(
        seed=seed, replicas=nodes, minimum=nodes, maximum=nodes, samples=True, faults=(fault,)
    )


def test_a_slow_node_is_named_and_forgiven() -> None:
    """Of two nodes as well as of twelve; one that is hardly slower is not named."""
    fault = Fault(20.0, "straggle", 1, 20.0)
    named = [run(calm(seed, nodes, fault)) for seed in range(4) for nodes in (2, 12)]
    assert not [outcome.text for outcome in named if not outcome.ok]
    assert 0 < sum(outcome.named.total() for outcome in named) < len(named)


def test_every_kind_of_hang_is_named() -> None:
    """The seeds meet each; of a world of three, in which none has two halves.

    A rank that compiles is given more time.
    """
    kinds: Counter[str] = Counter()
    for seed in range(55):
        fault = Fault(20.0, "hang_rank", 1, 15.0)
        outcome = run(calm(seed, 3, fault))
        assert outcome.ok, outcome.text
        kinds += outcome.named
    assert set(kinds) == {kind.name for kind in HANGS if kind is not HangKind.COMPILATION}
    outcome = run(calm(50, 3, Fault(20.0, "hang_rank", 1, 85.0)))
    assert outcome.ok, outcome.text
    assert outcome.named == {HangKind.COMPILATION.name: 1}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_stays_mended(name: str) -> None:
    """The schedule that led to a false verdict leads to none."""
    outcome = run(FOUND[name])
    assert outcome.ok, outcome.text
