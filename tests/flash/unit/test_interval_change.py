"""Ranks that hear of a new schedule at different steps: at every step all save the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flash.schedule import Course, Due, SaveEvery, Schedule, ScheduleOffer, due, parse

OLD, NEW = SaveEvery(memory=2, storage=6), SaveEvery(memory=3, storage=9)


def _offer(number: int, step: int, every: SaveEvery = NEW) -> ScheduleOffer:
    return ScheduleOffer(number=number, step=step, every=every)


def _saves(course: Course, step: int) -> Due:
    found = [due(step, every) for every in course.at(step)]
    kinds = [(one.memory, one.storage, one.sure) for one in found]
    return Due(*map(any, zip(*kinds, strict=True)))


def test_a_confirmed_schedule_holds_from_its_step_on() -> None:
    """Not before, and then alone."""
    course = Course(OLD)
    course.offered(_offer(1, 10))
    assert course.at(8) == (OLD,)
    course.confirmed(1)
    assert [course.at(step) for step in (9, 10, 11)] == [(OLD,), (NEW,), (NEW,)]


def test_one_that_is_not_confirmed_is_followed_beside_the_old() -> None:
    """Nobody does without the old one unless all know the new one."""
    course = Course(OLD)
    course.offered(_offer(1, 10))
    assert course.at(9) == (OLD,)
    assert course.at(12) == (OLD, NEW)
    course.confirmed(1)
    assert course.at(13) == (NEW,)


def test_a_newer_offer_stands_beside_one_that_was_not_confirmed() -> None:
    """A master that is gone may have confirmed it to some; the next confirmed one ends it."""
    course, other = Course(OLD), SaveEvery(memory=5, storage=5)
    course.offered(_offer(1, 10))
    course.offered(_offer(2, 20, other))
    assert course.at(15) == (OLD, NEW)
    assert course.at(20) == (OLD, NEW, other)
    course.confirmed(2)
    assert course.at(21) == (other,)


def test_what_is_confirmed_late_still_holds() -> None:
    """Beside what was offered since."""
    course, other = Course(OLD), SaveEvery(memory=5, storage=5)
    course.offered(_offer(1, 10))
    course.offered(_offer(2, 20, other))
    course.confirmed(1)
    assert course.at(15) == (NEW,)
    assert course.at(20) == (NEW, other)


def test_a_word_that_comes_again_changes_nothing() -> None:
    """Nor does an old one after a newer one."""
    course, other = Course(OLD), SaveEvery(memory=5, storage=5)
    course.offered(_offer(1, 10))
    course.offered(_offer(2, 20, other))
    for number in (1, 1, 2, 1):
        course.confirmed(number)
    assert [course.at(step) for step in (9, 15, 20)] == [(OLD,), (NEW,), (other,)]


def test_an_offer_that_is_made_again_later_is_followed_from_the_first_time_on() -> None:
    """Until it is confirmed; then from the step of the one that was."""
    course = Course(OLD)
    course.offered(_offer(1, 10))
    course.offered(_offer(2, 20))
    assert course.at(15) == (OLD, NEW)
    course.confirmed(1)
    assert course.at(16) == (OLD, NEW), "nobody knows whether all heard of it in time"
    course.confirmed(2)
    assert [course.at(step) for step in (19, 20)] == [(OLD, NEW), (NEW,)]


def test_a_confirmed_one_waits_for_its_step_while_the_next_is_offered() -> None:
    """Each from its own step on."""
    course, third = Course(OLD), SaveEvery(memory=7, storage=7)
    course.offered(_offer(1, 10))
    course.confirmed(1)
    course.offered(_offer(2, 20, third))
    course.confirmed(2)
    assert [course.at(step) for step in (9, 10, 19, 20)] == [(OLD,), (NEW,), (NEW,), (third,)]


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
