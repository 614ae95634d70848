"""Arms: the agent asks for SAVE_AND_STOP at a step, the SDK echoes and answers."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.layout import Answer, Word
from holdfast.page import Page, PageError
from holdfast.slot import SlotWriter
from page_worker import page_of

SAVE, STOP = Answer.SAVE, Answer.SAVE_AND_STOP


def test_an_arm_is_echoed_then_answered_at_its_step() -> None:
    """The echo carries the step at which the arm was first seen, the answer its own step."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        page.arm(0, arm_id=3, step=12)
        assert [writer.step(n, 0, None) for n in (10, 11, 12, 13)] == [0, 0, STOP, 0]
        sample = page.read(0)
        assert (sample.echo_id, sample.echo_step) == (3, 10)
        assert (sample.answered_id, sample.answered_step) == (3, 12)


def test_an_arm_for_the_very_next_step_is_answered_at_once() -> None:
    """Seen first at its own step is still in time."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        page.arm(0, 1, 5)
        assert writer.step(5, 0, None)


def test_a_missed_arm_is_echoed_and_never_answered() -> None:
    """An arm for a step that is past tells the agent to try a later one, with a new id."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        writer.step(20, 0, None)
        page.arm(0, 1, 20)
        assert not writer.step(21, 0, None)
        assert (page.read(0).echo_id, page.read(0).echo_step) == (1, 21)
        page.arm(0, 2, 23)
        assert [writer.step(n, 0, None) for n in (22, 23)] == [0, STOP]
        assert page.read(0).answered_id == 2


def test_a_newer_arm_replaces_one_not_yet_answered() -> None:
    """Only the newest arm is answered, at its own step."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        page.arm(0, 1, 10)
        writer.step(7, 0, None)
        page.arm(0, 2, 12)
        assert [writer.step(n, 0, None) for n in range(8, 14)] == [0, 0, 0, 0, STOP, 0]


def test_a_rank_that_is_to_go_on_saves_and_has_no_boundary() -> None:
    """A checkpoint that somebody asked for; the next arm is a boundary like any other."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        page.arm(0, 1, 10, goes_on=True)
        page.arm(0, 1, 10, goes_on=True)  # the same again is harmless
        assert [writer.step(n, 0, None) for n in (9, 10, 11)] == [0, SAVE, 0]
        writer.complete_boundary()
        sample = page.read(0)
        assert (sample.echo_id, sample.echo_step) == (1, 9)
        assert (sample.answered_id, sample.boundary_complete) == (0, False)
        page.arm(0, 2, 12)
        assert writer.step(12, 0, None) == STOP


def test_a_half_written_arm_waits_for_its_other_half() -> None:
    """Id without its check word is no arm yet."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        page.arm(0, 1, 10)
        check = page.index(0, Word.ARM_CHECK)
        whole, page.words[check] = page.words[check], 0
        assert not writer.step(9, 0, None)
        assert page.read(0).echo_id == 0
        page.words[check] = whole
        assert writer.step(10, 0, None)


@pytest.mark.parametrize(("arm_id", "step"), [(0, 5), (4, 5), (5, 0), (2**63, 5), (5, 2**63)])
def test_arms_that_cannot_be_meant_are_refused(arm_id: int, step: int) -> None:
    """Ids grow, and both numbers are positive; the error names them."""
    with page_of(1) as page:
        page.arm(0, 4, 9)
        page.arm(0, 4, 9)  # the same again is harmless
        with pytest.raises(PageError, match=f"arm id {arm_id} at step {step} in slot 0"):
            page.arm(0, arm_id, step)


def test_a_reset_forgets_the_arm() -> None:
    """A new round's process is not asked for what the old one was asked for."""
    with page_of(1) as page:
        page.arm(0, 4, 9)
        page.reset(0, 1)
        writer = SlotWriter(page, 0, 1)
        assert not writer.step(9, 0, None)
        assert page.read(0).echo_id == 0
        page.arm(0, 1, 10)
        assert writer.step(10, 0, None)


@pytest.mark.parametrize(
    ("stop_at", "complete"),
    [pytest.param(10, True, id="at-answer"), pytest.param(11, False, id="trained-on")],
)
def test_only_a_script_that_stopped_at_its_answer_has_a_boundary(
    stop_at: int, *, complete: bool
) -> None:
    """A script that goes on after SAVE_AND_STOP and ends later has simply ended."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        page.arm(0, 1, 10)
        for n in range(1, stop_at + 1):
            writer.step(n, 0, None)
        writer.complete_boundary()
        assert page.read(0).boundary_complete is complete


def test_without_an_arm_there_is_no_boundary() -> None:
    """Success is not mistaken for a boundary."""
    with page_of(1) as page:
        writer = SlotWriter(page, 0, 0)
        writer.step(10, 0, None)
        writer.complete_boundary()
        assert not page.read(0).boundary_complete


class ArmMachine(RuleBasedStateMachine):
    """An agent that arms as it likes, a script that steps as it likes, and what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page.create(1)
        self.writer = SlotWriter(self.page, 0, 0)
        self.step_now = 0
        self.arms: dict[int, int] = {}
        """Every arm ever set, id to step."""
        self.asks: dict[int, Answer] = {}
        """What each of them asks for."""
        self.first_seen: dict[int, int] = {}
        self.answers: list[tuple[int, int]] = []

    @initialize(start=st.integers(0, 1000))
    def restored(self, start: int) -> None:
        """Training goes on from any step."""
        self.step_now = start

    @rule(ahead=st.integers(-3, 5), jump=st.integers(1, 4), goes_on=st.booleans())
    def arm(self, ahead: int, jump: int, *, goes_on: bool) -> None:
        """The agent asks for a step near the present one, with a newer id."""
        arm_id = max(self.arms, default=0) + jump
        step = max(1, self.step_now + ahead)
        self.arms[arm_id] = step
        self.asks[arm_id] = SAVE if goes_on else STOP
        self.page.arm(0, arm_id, step, goes_on=goes_on)

    @rule(gap=st.sampled_from([1, 1, 1, 2, 3]))
    def step(self, gap: int) -> None:
        """The script completes steps, reporting some of them."""
        self.step_now += gap
        newest = max(self.arms, default=None)
        if newest is not None:
            self.first_seen.setdefault(newest, self.step_now)
        due = newest is not None and self.arms[newest] == self.step_now
        expected = self.asks[newest] if due and newest is not None else Answer.NOTHING
        assert self.writer.step(self.step_now, 1, None) == expected
        if expected is STOP and newest is not None:
            self.answers.append((newest, self.step_now))

    @precondition(lambda self: self.first_seen)
    @invariant()
    def echo_names_the_newest_seen(self) -> None:
        """The echo is the newest arm that a step has met, and where it met it."""
        sample = self.page.read(0)
        seen = max(self.first_seen)
        assert (sample.echo_id, sample.echo_step) == (seen, self.first_seen[seen])

    @invariant()
    def answer_is_the_last_given(self) -> None:
        """Each arm is answered at most once, and the page shows the last stop."""
        sample = self.page.read(0)
        last = self.answers[-1] if self.answers else (0, 0)
        assert (sample.answered_id, sample.answered_step) == last
        assert len({arm_id for arm_id, _ in self.answers}) == len(self.answers)

    def teardown(self) -> None:
        """Give the descriptor back."""
        os.close(self.page.fd)


TestArmMachine = ArmMachine.TestCase
TestArmMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
