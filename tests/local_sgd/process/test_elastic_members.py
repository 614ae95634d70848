"""Replicas that are killed, frozen and added under real groups: the others never restart."""

from __future__ import annotations

import random
from itertools import groupby
from statistics import median
from typing import Any

import pytest

from local_sgd import elastic_runs
from local_sgd.elastic_runs import Lines

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def run(scenario: str, **settings: Any) -> dict[int, Lines]:
    """Return what each replica wrote down."""
    told = elastic_runs.run(scenario=scenario, kind="sums", pace=0.02, **settings)
    return {int(name.split()[0]): lines for name, lines in told["ranks"].items()}


def check_survivor(lines: Lines, members: list[int]) -> None:
    """Hold a survivor to one process, all its rounds in a row, and these numbers of members."""
    assert len({line["pid"] for line in lines}) == 1
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    assert [count for count, _ in groupby(line["members"] for line in lines)] == members


def cost(told: dict[int, Lines], survivors: tuple[int, ...], epoch: int = 2) -> float:
    """Return the seconds that an epoch's first sync took beyond the median one of epoch 1.

    A sync takes from the last survivor's arrival until the last has left.
    """

    def took(number: int) -> float:
        rows = [line for one in survivors for line in told[one] if line["round"] == number]
        return float(max(row["left"] for row in rows) - max(row["arrived"] for row in rows))

    lines = told[survivors[0]]
    before = median(took(line["round"]) for line in lines if line["epoch"] == 1)
    return took(next(line["round"] for line in lines if line["epoch"] == epoch)) - before


def test_four_replicas_become_two_and_then_six() -> None:
    """Two of four are killed at one time, at a drawn instant, and four others come.

    The survivors keep their processes and lose no round.
    """
    seed = random.randrange(10_000)
    told = run("four, two, six", pause=random.Random(seed).uniform(0.0, 0.05))
    for survivor in (0, 2):
        check_survivor(told[survivor], [4, 2, 6])
    for joiner in (4, 5, 6, 7):
        check_survivor(told[joiner], [6])
    assert cost(told, (0, 2)) < 30.0, f"seed {seed}: the deadline told them, not the roster"


def test_survivors_wait_for_the_roster_that_tells_who_is_left() -> None:
    """The roster comes a second after the death: survivors wait, and go on in their processes."""
    told = run("late roster")
    for survivor in (1, 2):
        check_survivor(told[survivor], [3, 2])


def test_a_frozen_replica_holds_nobody_once_a_roster_leaves_it_out() -> None:
    """Its connections stay open; the others leave at the roster, and it comes back by a later."""
    told = run("frozen")
    for survivor in (0, 2):
        check_survivor(told[survivor], [3, 2, 3])
    check_survivor(told[1], [3])
    assert cost(told, (0, 2)) < 30.0, "the deadline of 60 s told them, not the roster"


def test_a_group_that_cannot_end_yet_holds_up_no_later_change() -> None:
    """A dead replica fails one collective; another of the same group waits for a frozen one.

    torch ends the group only when its deadline of 60 s has passed for the second. Members that
    change meanwhile do not wait for that.
    """
    told = run("killed and frozen")
    for survivor in (0, 3):
        check_survivor(told[survivor], [4, 2, 3])
    assert cost(told, (0, 3), epoch=3) < 30.0


def test_a_death_while_a_group_forms_is_told_by_the_next_roster() -> None:
    """Epoch 2 names a dead replica: survivors wait for it until epoch 3 leaves it out."""
    told = run("killed while meeting")
    for survivor in (0, 1):
        check_survivor(told[survivor], [3, 2])
        assert {line["epoch"] for line in told[survivor]} == {1, 3}
