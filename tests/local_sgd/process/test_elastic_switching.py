"""Replicas that come and go choose their interval by measurement, all alike after each step."""

from __future__ import annotations

import random
from itertools import groupby, pairwise
from typing import Any, Final

import pytest

from house.extended import usual
from local_sgd.elastic_runs import check_kept, run, steps_of

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_elastic_switching.py::test_survivors_and_joiners_go_on_with_the_interval_that_was_chosen",
        "local_sgd/process/test_elastic_switching.py::test_a_replica_that_has_missed_a_choice_takes_it_from_the_others",
    ],
)
SWITCHING = {"interval": 2, "config": {"switching": "act", "switching_tolerated": 0.5}}
SLOW = {"fsdp": 0.05, "ddp": 0.25}
"""Seconds of a transfer: five units in turn, or all parameters at one time. So a round takes 0.25 s
and a step 0.08 s, by a clock that counts no more (`elastic_training.WorkClock`)."""
CHOSEN: Final = 8
"""Steps after which that round costs at most half a step each: 0.25 / (8·0.08) is 0.39, with 4 of
them 0.78; a change of members within a look makes it choose 4 first, at most."""


def check_alike(told: dict[str, Any], why: str) -> list[int]:
    """Hold all ranks to one choice after each round; return the intervals in their order."""
    by_round: dict[int, set[tuple[int, ...]]] = {}
    for lines in told["ranks"].values():
        for line in steps_of(lines):
            interval, votes, number, step = line["agreed"]
            by_round.setdefault(number, set()).add((interval, votes, step))
    unlike = {number: found for number, found in by_round.items() if len(found) > 1}
    assert unlike == {}, why
    chosen = [next(iter(by_round[number]))[0] for number in sorted(by_round)]
    return [interval for interval, _ in groupby(chosen)]


@pytest.mark.parametrize("kind", usual(["fsdp", "ddp"], "fsdp", more=MORE))
def test_survivors_and_joiners_go_on_with_the_interval_that_was_chosen(kind: str) -> None:
    """One is killed and one comes, with two shards each; nobody restarts, and no look is lost."""
    seed = random.randrange(10_000)
    told = run(
        scenario="campaign",
        kind=kind,
        slow=SLOW[kind],
        replicas=3,
        shards=2,
        events=["kill", "join"],
        seed=seed,
        every=5,
        **SWITCHING,
    )
    why = f"seed {seed}: {told['done']}"
    check_kept(told, why, least=8)
    intervals = check_alike(told, why)
    assert intervals[0] == 2, why
    assert intervals[-1] == CHOSEN, why


@pytest.mark.parametrize("kind", usual(["fsdp", "ddp"], "fsdp", more=MORE))
def test_a_replica_that_has_missed_a_choice_takes_it_from_the_others(kind: str) -> None:
    """A look that was cut short has ended on two of three; one more comes, and takes it too."""
    told = run(scenario="missed", kind=kind, slow=SLOW[kind], replicas=3, misses=1, **SWITCHING)
    why = str(told["done"])
    check_kept(told, why, least=5)
    assert len(check_alike(told, why)) > 1, why


@pytest.mark.parametrize("kind", usual(["fsdp", "ddp"], "ddp", more=MORE))
@pytest.mark.extended(
    "a longer absence than the other test's, under DDP",
    held_by=[
        "local_sgd/process/test_elastic_switching.py::test_a_replica_that_has_missed_a_choice_takes_it_from_the_others",
    ],
)
def test_one_that_was_out_for_long_has_rounds_as_often_as_the_others(kind: str) -> None:
    """It is at the others' step, place and rate after one round, and has rounds as often."""
    told = run(scenario="thawed", kind=kind, slow=SLOW[kind], replicas=3, every=5, **SWITCHING)
    why = str(told["done"])
    check_kept(told, why, least=8)
    longest = max(check_alike(told, why))
    assert longest > 2, why
    for name, lines in told["ranks"].items():
        made = [line["own"] for line in steps_of(lines) if "round" in line]
        assert max(b - a for a, b in pairwise(made)) <= 2 * longest, f"{name}: {why}"
