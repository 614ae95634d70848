"""Replicas that come and go choose their interval by measurement, all alike after each step."""

from __future__ import annotations

import random
from typing import Any

import pytest

from local_sgd.elastic_runs import check_kept, run, steps_of

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
SWITCHING = {"interval": 2, "config": {"switching": "act", "switching_tolerated": 0.5}}
SLOW = {"fsdp": 0.05, "ddp": 0.25}
"""Seconds of a transfer: five units in turn, or all parameters at one time. A round takes 0.25 s,
also on a busy machine many times what a step takes: two steps a round are too few."""


def check_alike(told: dict[str, Any], why: str) -> list[int]:
    """Hold all ranks to one interval after each step; return the intervals in their order."""
    by_step: dict[int, set[tuple[int, ...]]] = {}
    for lines in told["ranks"].values():
        for line in steps_of(lines):
            by_step.setdefault(line["step"], set()).add(tuple(line["agreed"]))
    unlike = {step: found for step, found in by_step.items() if len(found) > 1}
    assert unlike == {}, why
    intervals: list[int] = []
    for step in sorted(by_step):
        (one,) = by_step[step]
        if intervals[-1:] != [one[0]]:
            intervals.append(one[0])
    return intervals


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
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
    assert max(intervals) > 2, why
    assert min(intervals) == 2, "no sync in each step"


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_a_replica_that_has_missed_a_choice_takes_it_from_the_others(kind: str) -> None:
    """A look that was cut short has ended on two of three; one more comes, and takes it too."""
    told = run(scenario="missed", kind=kind, slow=SLOW[kind], replicas=3, misses=1, **SWITCHING)
    why = str(told["done"])
    check_kept(told, why, least=5)
    assert len(check_alike(told, why)) > 1, why
