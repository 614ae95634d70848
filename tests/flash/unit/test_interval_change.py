"""Ranks that hear of a new schedule at different steps: at every step all save the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flash.schedule import Course, Due, SaveEvery, Schedule, ScheduleOffer, due, parse

OLD, NEW = SaveEvery(memory=2, storage=6), SaveEvery(memory=3, storage=9)
THIRD = SaveEvery(memory=5, storage=5)


def _offer(number: int, step: int, every: SaveEvery = NEW) -> ScheduleOffer:
    return ScheduleOffer(number=number, step=step, every=every)


def _saves(course: Course, step: int) -> Due:
    found = [due(step, every) for every in course.at(step)]
    kinds = [(one.memory, one.storage, one.sure) for one in found]
    return Due(*map(any, zip(*kinds, strict=True)))


COURSES: dict[str, list[Any]] = {
    "a confirmed one holds from its step on, and then alone": [
        *(_offer(1, 10), (8, OLD)),
        *(1, (9, OLD), (10, NEW), (11, NEW)),
    ],
    "one that is not confirmed is followed beside the old: all may not know it": [
        *(_offer(1, 10), (9, OLD), (12, OLD, NEW)),
        *(1, (13, NEW)),
    ],
    "a newer offer stands beside one that a lost master may have confirmed to some": [
        *(_offer(1, 10), _offer(2, 20, THIRD), (15, OLD, NEW), (20, OLD, NEW, THIRD)),
        *(2, (21, THIRD)),
    ],
    "one that is confirmed late still holds, beside what was offered since": [
        *(_offer(1, 10), _offer(2, 20, THIRD)),
        *(1, (15, NEW), (20, NEW, THIRD)),
    ],
    "a word that comes again changes nothing, nor an old one after a newer one": [
        *(_offer(1, 10), _offer(2, 20, THIRD)),
        *(1, 1, 2, 1, (9, OLD), (15, NEW), (20, THIRD)),
    ],
    "one that is offered again is followed from the first time on, until it is confirmed": [
        *(_offer(1, 10), _offer(2, 20), (15, OLD, NEW)),
        *(1, (16, OLD, NEW)),  # nobody knows whether all heard of it in time
        *(2, (19, OLD, NEW), (20, NEW)),
    ],
    "each confirmed one waits for its own step": [
        *(_offer(1, 10), 1, _offer(2, 20, THIRD), 2),
        *((9, OLD), (10, NEW), (19, NEW), (20, THIRD)),
    ],
}
"""Offers, numbers of confirmed ones, and steps with the schedules that ask for saves there."""


@pytest.mark.parametrize("words", COURSES.values(), ids=COURSES)
def test_a_rank_follows_what_all_ranks_may_know(words: list[Any]) -> None:
    """From the step of an offer on beside the old schedule, alone once it is confirmed."""
    course = Course(OLD)
    for word in words:
        if isinstance(word, ScheduleOffer):
            course.offered(word)
        elif isinstance(word, int):
            course.confirmed(word)
        else:
            step, *expected = word
            assert course.at(step) == tuple(expected), step


RANKS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), min_size=2, max_size=5)


@given(RANKS, st.integers(2, 30))
def test_at_every_step_all_ranks_make_the_saves_of_one_schedule(
    heard: list[tuple[int, int]], first: int
) -> None:
    """Whenever each rank hears the offer, and if all did in time whenever each hears of that.

    heard: (step at which a rank hears the offer, steps until it hears that all know it).
    """
    in_time = all(at <= first for at, _ in heard)
    courses = [Course(OLD) for _ in heard]
    promised = max(at for at, _ in heard)  # nothing is confirmed before all have echoed
    for step in range(1, 60):
        dues = []
        for course, (at, later) in zip(courses, heard, strict=True):
            if step == at:
                course.offered(_offer(1, first))
            if in_time and step == promised + later:
                course.confirmed(1)
            dues.append(_saves(course, step))
        wanted = [due(step, OLD)] + ([due(step, NEW)] if in_time and step >= first else [])
        kept = [
            one
            for one in wanted
            if all(d.memory >= one.memory and d.storage >= one.storage for d in dues)
        ]
        assert kept, (step, dues)


def test_the_script_s_numbers_hold_over_any_others() -> None:
    """Tier by tier; "auto" leaves its tier to the master."""
    assert Schedule().over(NEW) == NEW
    assert Schedule(memory_every=0).over(NEW) == SaveEvery(memory=0, storage=9)
    assert Schedule(memory_every=4, storage_every=8).over(NEW) == SaveEvery(memory=4, storage=8)


def test_what_an_agent_passes_on_is_read_or_refused() -> None:
    """Empty: there is no master's schedule."""
    assert parse("") is None
    assert parse("3:120") == SaveEvery(memory=3, storage=120)
    with pytest.raises(ValueError, match="'3'"):
        parse("3")
