"""Votes on replicas in step: the one whose work is longer is slow, and no single step decides."""

from __future__ import annotations

import random
from statistics import median

import pytest

from holdfast_master.policies.slow_replicas import LOOKS, ReplicaWork, vote


def look(works: dict[int, ReplicaWork], seconds: dict[int, float], times: int = LOOKS) -> None:
    """Look at so many more steps."""
    for _ in range(times):
        for number, one in works.items():
            one.look(one.step + 1, seconds[number])


def test_one_that_works_longer_is_slow_after_enough_votes() -> None:
    """Two of three: the second one that holds decides, and its steps are told."""
    works = {number: ReplicaWork() for number in (1, 2, 3)}
    for votes, slow in enumerate([False, True, True], 1):
        look(works, {1: 0.1, 2: 0.13, 3: 0.1})
        assert vote(works, 20.0, 2, 3)
        assert bool(works[2].slow_since) is slow, votes
    assert works[2].slow_since == 2 * LOOKS
    assert round(works[2].percent) == 30
    assert not works[1].slow_since


def test_one_that_is_as_fast_again_is_not_slow_any_more() -> None:
    """Once too few of the votes that count accuse it."""
    works = {number: ReplicaWork() for number in (1, 2)}
    for slower in (0.2, 0.2, 0.1, 0.1):
        look(works, {1: 0.1, 2: slower})
        vote(works, 20.0, 2, 3)
    assert not works[2].slow_since


def test_a_pause_in_a_step_or_two_says_nothing() -> None:
    """A checkpoint, a garbage collection: the middle of the looks counts."""
    works = {number: ReplicaWork() for number in (1, 2)}
    look(works, {1: 0.1, 2: 0.1}, LOOKS - 2)
    look(works, {1: 0.1, 2: 5.0}, 2)
    assert vote(works, 20.0, 1, 1)
    assert not works[2].slow_since


def test_nobody_is_judged_while_one_has_not_been_looked_at_enough() -> None:
    """A step that was looked at before is no news; a lone replica has no others."""
    works = {number: ReplicaWork() for number in (1, 2)}
    look(works, {1: 0.1, 2: 0.1}, LOOKS - 1)
    for one in works.values():
        one.look(one.step, 0.1)
    assert not vote(works, 20.0, 1, 1)
    lone = {1: ReplicaWork()}
    look(lone, {1: 0.1})
    assert not vote(lone, 20.0, 1, 1)


def test_the_middle_of_the_others_leaves_each_replica_out() -> None:
    """By sorting once: the same as a median over all the others, also where some are equal."""
    seed = random.randrange(10_000)
    luck = random.Random(seed)
    for count in (2, 3, 4, 7):
        seconds = {number: luck.choice((0.1, 0.2, luck.random() + 0.01)) for number in range(count)}
        works = {number: ReplicaWork() for number in seconds}
        look(works, seconds)
        assert vote(works, 20.0, 1, 1)
        for number, one in works.items():
            others = median(value for each, value in seconds.items() if each != number)
            found = seconds[number] / (1 + one.percent / 100)
            assert found == pytest.approx(others), f"seed {seed}: {seconds}"
