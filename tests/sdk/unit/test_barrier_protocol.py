"""Arms: the agent asks for SAVE_AND_STOP at a step, the SDK echoes and answers."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.page import Page, PageError
from holdfast.page_layout import StepAnswer, Word
from holdfast.page_slot import SlotWriter

SAVE, STOP = StepAnswer.SAVE, StepAnswer.SAVE_AND_STOP


def test_a_barrier_is_acked_then_answered_at_its_step(page: Page, writer: SlotWriter) -> None:
    """The echo carries the step at which the barrier was first seen, the answer its own step."""
    page.set_barrier(0, barrier_id=3, step=12)
    assert [writer.step(n, 0, None) for n in (10, 11, 12, 13)] == [0, 0, STOP, 0]
    sample = page.read(0)
    assert (sample.ack_id, sample.ack_step) == (3, 10)
    assert (sample.answered_id, sample.answered_step) == (3, 12)


def test_a_barrier_for_the_very_next_step_is_answered_at_once(
    page: Page, writer: SlotWriter
) -> None:
    """Seen first at its own step is still in time."""
    page.set_barrier(0, 1, 5)
    assert writer.step(5, 0, None)


def test_a_missed_barrier_is_acked_and_never_answered(page: Page, writer: SlotWriter) -> None:
    """A barrier for a step that is past tells the agent to try a later one, with a new id."""
    writer.step(20, 0, None)
    page.set_barrier(0, 1, 20)
    assert not writer.step(21, 0, None)
    assert (page.read(0).ack_id, page.read(0).ack_step) == (1, 21)
    page.set_barrier(0, 2, 23)
    assert [writer.step(n, 0, None) for n in (22, 23)] == [0, STOP]
    assert page.read(0).answered_id == 2


def test_a_newer_barrier_replaces_one_not_yet_answered(page: Page, writer: SlotWriter) -> None:
    """Only the newest barrier is answered, at its own step."""
    page.set_barrier(0, 1, 10)
    writer.step(7, 0, None)
    page.set_barrier(0, 2, 12)
    assert [writer.step(n, 0, None) for n in range(8, 14)] == [0, 0, 0, 0, STOP, 0]


def test_a_rank_that_is_to_go_on_saves_and_has_no_barrier(page: Page, writer: SlotWriter) -> None:
    """A checkpoint that somebody asked for; the next arm is a barrier like any other."""
    page.set_barrier(0, 1, 10, goes_on=True)
    page.set_barrier(0, 1, 10, goes_on=True)  # the same again is harmless
    assert [writer.step(n, 0, None) for n in (9, 10, 11)] == [0, SAVE, 0]
    writer.complete_barrier()
    sample = page.read(0)
    assert (sample.ack_id, sample.ack_step) == (1, 9)
    assert (sample.answered_id, sample.barrier_complete) == (0, False)
    page.set_barrier(0, 2, 12)
    assert writer.step(12, 0, None) == STOP


def test_a_half_written_barrier_waits_for_its_other_half(page: Page, writer: SlotWriter) -> None:
    """Id without its check word is no barrier yet."""
    page.set_barrier(0, 1, 10)
    check = page.index(0, Word.BARRIER_CHECK)
    whole, page.words[check] = page.words[check], 0
    assert not writer.step(9, 0, None)
    assert page.read(0).ack_id == 0
    page.words[check] = whole
    assert writer.step(10, 0, None)


@pytest.mark.parametrize(("barrier_id", "step"), [(0, 5), (4, 5), (5, 0), (2**63, 5), (5, 2**63)])
def test_barriers_that_cannot_be_meant_are_refused(page: Page, barrier_id: int, step: int) -> None:
    """Ids grow, and both numbers are positive; the error names them."""
    page.set_barrier(0, 4, 9)
    page.set_barrier(0, 4, 9)  # the same again is harmless
    with pytest.raises(PageError, match=f"barrier {barrier_id} at step {step} in slot 0"):
        page.set_barrier(0, barrier_id, step)


def test_a_reset_forgets_the_barrier(page: Page) -> None:
    """A new round's process is not asked for what the old one was asked for."""
    page.set_barrier(0, 4, 9)
    page.reset(0, 1)
    writer = SlotWriter(page, 0, 1)
    assert not writer.step(9, 0, None)
    assert page.read(0).ack_id == 0
    page.set_barrier(0, 1, 10)
    assert writer.step(10, 0, None)


@pytest.mark.parametrize(
    ("stop_at", "complete"),
    [pytest.param(10, True, id="at-answer"), pytest.param(11, False, id="trained-on")],
)
def test_only_a_script_that_stopped_at_its_answer_has_a_barrier(
    page: Page, writer: SlotWriter, stop_at: int, *, complete: bool
) -> None:
    """A script that goes on after SAVE_AND_STOP and ends later has simply ended."""
    page.set_barrier(0, 1, 10)
    for n in range(1, stop_at + 1):
        writer.step(n, 0, None)
    writer.complete_barrier()
    assert page.read(0).barrier_complete is complete


def test_without_a_barrier_there_is_no_barrier(page: Page, writer: SlotWriter) -> None:
    """Success is not mistaken for a barrier."""
    writer.step(10, 0, None)
    writer.complete_barrier()
    assert not page.read(0).barrier_complete


class BarrierMachine(RuleBasedStateMachine):
    """An agent that arms as it likes, a script that steps as it likes, and what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page.create(1)
        self.writer = SlotWriter(self.page, 0, 0)
        self.step_now = 0
        self.barriers: dict[int, int] = {}
        """Every arm ever set, id to step."""
        self.asks: dict[int, StepAnswer] = {}
        """What each of them asks for."""
        self.first_seen: dict[int, int] = {}
        self.answers: list[tuple[int, int]] = []

    @initialize(start=st.integers(0, 1000))
    def restored(self, start: int) -> None:
        """Training goes on from any step."""
        self.step_now = start

    @rule(ahead=st.integers(-3, 5), jump=st.integers(1, 4), goes_on=st.booleans())
    def set_barrier(self, ahead: int, jump: int, *, goes_on: bool) -> None:
        """The agent asks for a step near the present one, with a newer id."""
        barrier_id = max(self.barriers, default=0) + jump
        step = max(1, self.step_now + ahead)
        self.barriers[barrier_id] = step
        self.asks[barrier_id] = SAVE if goes_on else STOP
        self.page.set_barrier(0, barrier_id, step, goes_on=goes_on)

    @rule(gap=st.sampled_from([1, 1, 1, 2, 3]))
    def step(self, gap: int) -> None:
        """The script completes steps, reporting some of them."""
        self.step_now += gap
        newest = max(self.barriers, default=None)
        if newest is not None:
            self.first_seen.setdefault(newest, self.step_now)
        due = newest is not None and self.barriers[newest] == self.step_now
        expected = self.asks[newest] if due and newest is not None else StepAnswer.NOTHING
        assert self.writer.step(self.step_now, 1, None) == expected
        if expected is STOP and newest is not None:
            self.answers.append((newest, self.step_now))

    @precondition(lambda self: self.first_seen)
    @invariant()
    def ack_names_the_newest_seen(self) -> None:
        """The echo is the newest barrier that a step has met, and where it met it."""
        sample = self.page.read(0)
        seen = max(self.first_seen)
        assert (sample.ack_id, sample.ack_step) == (seen, self.first_seen[seen])

    @invariant()
    def answer_is_the_last_given(self) -> None:
        """Each arm is answered at most once, and the page shows the last stop."""
        sample = self.page.read(0)
        last = self.answers[-1] if self.answers else (0, 0)
        assert (sample.answered_id, sample.answered_step) == last
        assert len({barrier_id for barrier_id, _ in self.answers}) == len(self.answers)

    def teardown(self) -> None:
        os.close(self.page.fd)


TestBarrierMachine = BarrierMachine.TestCase
TestBarrierMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
