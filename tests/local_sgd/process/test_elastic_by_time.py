"""Rounds by time whose replicas are killed, frozen and added: each step counts once.

Each test draws its seed, and names it where it fails.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from house.extended import usual
from local_sgd.elastic_ledger import SIZE, place_of
from local_sgd.elastic_runs import run

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
MORE = pytest.mark.extended(
    "other values of the same test",
    held_by=[
        "local_sgd/process/test_elastic_by_time.py::test_by_time_each_step_counts_once",
        "local_sgd/process/test_elastic_by_time.py::test_under_ddp_by_time_each_step_counts_once",
    ],
)
BY_TIME = {"use_async": True, "local_sgd_sync_time": 0.15, "min_total_global_steps": 2}
EVENTS = ["kill", "join", "freeze", "join", "two"]
Ledger = dict[tuple[str, int], list[float]]


def campaign(config: dict[str, Any], **scenario: Any) -> tuple[dict[str, Any], str]:
    """Return what ranks wrote down in a campaign of drawn instants, and the seed for a message."""
    seed = random.randrange(10_000)
    told = run(scenario="campaign", kind="ledger", config=config, seed=seed, **scenario)
    return told, f"seed {seed}: {told['done']}"


def anchors_of(told: dict[str, Any], gone: list[int], why: str) -> Ledger:
    """Return the whole anchors of each unit and round; all members have the same bits.

    What no member has seen is told by those who are gone.
    """
    shards = 1 + max(int(name.split()[1]) for name in told["ranks"])
    parts = defaultdict[tuple[str, int], dict[int, list[float]]](dict)
    for replica in [*told["members"], *gone]:
        for shard in range(shards):
            for line in told["ranks"][f"{replica} {shard}"]:
                if "anchor" in line:
                    known = parts[line["unit"], line["at"]].setdefault(shard, line["anchor"])
                    assert known == line["anchor"] or replica in gone, f"{replica} {line}: {why}"
    found = {
        key: [x for _, part in sorted(one.items()) for x in part] for key, one in parts.items()
    }
    return {key: one for key, one in found.items() if len(one) == SIZE}


def check_ledger(told: dict[str, Any], why: str) -> None:
    """Hold processes to one life, and each member's steps to be in the anchors just once."""
    members, every = told["members"], sorted({int(name.split()[0]) for name in told["ranks"]})
    gone = [one for one in every if one not in members]
    anchors = anchors_of(told, gone, why)
    lines = {one: told["ranks"][f"{one} 0"] for one in every}
    weights = {  # a member's word comes last: a round may be lost with all who had made it
        (line["unit"], line["made"]): line["weight"]
        for one in [*gone, *members]
        for line in lines[one]
        if "made" in line
    }
    last = max(number for _, number in anchors)
    units = {unit for unit, _ in anchors}
    for replica in every:
        own = [line["own"] for line in lines[replica] if "own" in line]
        assert own == list(range(1, len(own) + 1)), why
        assert len({line["pid"] for line in lines[replica] if "own" in line}) <= 1, why
        for unit in units:
            counted = 0.0
            for number in range(1, last + 1):
                before = anchors.get((unit, number - 1), [0.0] * SIZE)
                grown = anchors[unit, number][place_of(replica)] - before[place_of(replica)]
                counted += grown / weights[unit, number] if grown else 0.0
            said = f"replica {replica}, unit {unit}: {counted} of {len(own)} steps; {why}"
            if replica in members:
                assert counted == pytest.approx(len(own), abs=0.01), said
            assert counted <= len(own) + 1.01, said  # a step that it had no time to write down
    for replica in members:
        assert {"ended": True} in lines[replica], why


@pytest.mark.parametrize("shards", usual([1, 2], 2, more=MORE))
def test_by_time_each_step_counts_once(shards: int) -> None:
    """Killed at drawn instants, two at one time, one frozen, two that join: with a barrier."""
    events = EVENTS if shards == 1 else ["kill", "join"]
    told, why = campaign(BY_TIME, events=events, replicas=4 if shards == 1 else 3, shards=shards)
    check_ledger(told, why)


@pytest.mark.parametrize("ranks", usual([1, 2], 1, more=MORE))
def test_under_ddp_by_time_each_step_counts_once(ranks: int) -> None:
    """Replicas of one rank and of two, whose rounds run behind the optimizer's step."""
    events = EVENTS if ranks == 1 else ["kill", "join"]
    replicas = 4 if ranks == 1 else 3
    told, why = campaign(BY_TIME, wrapped="ddp", events=events, replicas=replicas, shards=ranks)
    check_ledger(told, why)
