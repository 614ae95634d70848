"""The schedule of checkpoints between an agent and its rank: offered, echoed, confirmed."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agents.page_worker import page_of
from holdfast.environment import Environment
from holdfast.flash.schedule import Schedule
from holdfast.flash.trainer.save_policy import TierSchedule
from holdfast.job import Job
from holdfast.page import Page, PageError
from holdfast.page_layout import TIER_WORDS, Word
from holdfast.page_sample import SavingSample, TierSaving
from holdfast.page_slot import ScheduleHeard, SlotWriter
from holdfast_wire.messages import Tier

NOTHING = {Tier.MEMORY: TierSaving(), Tier.STORAGE: TierSaving()}


def saving_of(page: Page) -> SavingSample:
    """What the rank says of its saves."""
    saving = page.read(0).saving
    assert saving is not None
    return saving


def both(memory: int, storage: int) -> dict[Tier, int]:
    """Steps between saves by tier."""
    return {Tier.MEMORY: memory, Tier.STORAGE: storage}


def test_an_offer_is_heard_once_and_acked_with_its_step(page: Page, writer: SlotWriter) -> None:
    """Then it is heard again when all ranks know it."""
    writer.say_saving(0, NOTHING)
    assert writer.hear_schedule(6) is None
    page.offer_schedule(0, 4, step=20, every=both(3, 30))
    heard = ScheduleHeard(number=4, step=20, every=both(3, 30), confirmed=0)
    assert [writer.hear_schedule(n) for n in (7, 8)] == [heard, None]
    saving = saving_of(page)
    assert (saving.seen_id, saving.seen_step) == (4, 7)
    page.confirm_schedule(0, 4)
    again = writer.hear_schedule(9)
    assert again is not None
    assert again.confirmed == 4
    assert saving_of(page).seen_step == 7


def test_a_half_written_offer_waits_for_its_other_half(page: Page, writer: SlotWriter) -> None:
    """Words without their check are no schedule yet."""
    page.offer_schedule(0, 4, step=20, every=both(3, 30))
    check = page.index(0, Word.SCHEDULE_CHECK)
    whole, page.words[check] = page.words[check], 0
    assert writer.hear_schedule(7) is None
    page.words[check] = whole
    assert writer.hear_schedule(8) is not None


def test_an_older_offer_changes_nothing_and_an_impossible_one_is_refused(page: Page) -> None:
    """A repeated word is harmless; the error names the values."""
    page.offer_schedule(0, 4, step=20, every=both(3, 30))
    page.offer_schedule(0, 4, step=21, every=both(1, 1))
    page.offer_schedule(0, 3, step=21, every=both(1, 1))
    heard = SlotWriter(page, 0, 0).hear_schedule(1)
    assert heard is not None
    assert (heard.step, heard.every) == (20, both(3, 30))
    with pytest.raises(PageError, match=r"schedule \(5, 0, 3, 30\) in slot 0"):
        page.offer_schedule(0, 5, step=0, every=both(3, 30))
    with pytest.raises(PageError, match="expected 0"):
        page.offer_schedule(0, 5, step=1, every=both(2**63, 30))


def test_what_saving_costs_is_read_by_the_agent(page: Page, writer: SlotWriter) -> None:
    """With the script's own numbers, of which 0 is one; nothing where nobody follows."""
    assert page.read(0).saving is None
    costs = {
        Tier.MEMORY: TierSaving(stop_ns=5, every=0),
        Tier.STORAGE: TierSaving(stop_ns=6, durable_ns=7),
    }
    writer.say_saving(4, costs)
    saving = saving_of(page)
    assert (saving.step_ns, saving.tiers) == (4, costs)


def test_a_tier_that_a_rank_does_not_save_to_has_no_costs(page: Page, writer: SlotWriter) -> None:
    """Its words are empty, which would say that a save costs nothing."""
    writer.say_saving(4, {Tier.STORAGE: TierSaving(stop_ns=6)})
    assert saving_of(page).tiers == {Tier.STORAGE: TierSaving(stop_ns=6)}


def test_how_long_a_sync_held_a_rank_up_is_read_by_the_agent(
    page: Page, writer: SlotWriter
) -> None:
    """The newest one counts."""
    assert page.read(0).sync_ns == 0
    writer.say_sync(7)
    writer.say_sync(5)
    assert page.read(0).sync_ns == 5


def test_the_work_on_a_micro_batch_is_read_by_the_agent(page: Page, writer: SlotWriter) -> None:
    """The newest step's; a script that trains no replicas in step tells none."""
    assert page.read(0).work_ns == 0
    writer.say_work(9)
    assert page.read(0).work_ns == 9


@pytest.mark.parametrize("at", range(TIER_WORDS))
def test_the_check_covers_the_interval_of_each_tier(page: Page, at: int) -> None:
    """Of those to come as well, and of two that were swapped."""
    page.offer_schedule(0, 4, step=20, every=both(3, 30))
    base = page.index(0, Word.SCHEDULE_EVERY)
    page.words[base + at] ^= 1 << (7 * at)
    assert SlotWriter(page, 0, 0).hear_schedule(7) is None
    page.words[base + at] ^= 1 << (7 * at)
    one, other = base + at, base + (at + 1) % TIER_WORDS
    page.words[one], page.words[other] = page.words[other], page.words[one]
    swapped = SlotWriter(page, 0, 0).hear_schedule(7)
    assert (swapped is None) is (page.words[one] != page.words[other])


def _due(schedule: TierSchedule, job: Job, step: int) -> tuple[bool, bool]:
    what = schedule.begin(job, step, writing=False)
    return what.memory, what.storage


def test_a_rank_saves_as_its_master_says_and_by_its_own_numbers_first() -> None:
    """From the page to what is due; without a master's word nothing is followed or said."""
    with page_of(1) as page:
        job = Job(Environment(), SlotWriter(page, 0, 0))
        schedule = TierSchedule(Schedule(storage_every=4), "2:100")
        assert [_due(schedule, job, step) for step in (1, 2)] == [(False, False), (True, False)]
        page.offer_schedule(0, 1, step=5, every=both(5, 50))
        assert _due(schedule, job, 3) == (False, False)
        page.confirm_schedule(0, 1)
        assert [_due(schedule, job, step) for step in (4, 5, 6)] == [
            (True, True),
            (True, False),
            (False, False),
        ]
        saving = saving_of(page)
        assert (saving.seen_id, saving.seen_step, saving.tiers[Tier.STORAGE].every) == (1, 3, 4)
    with page_of(1) as page:
        job = Job(Environment(), SlotWriter(page, 0, 0))
        schedule = TierSchedule(Schedule(), "")
        assert [_due(schedule, job, step) for step in (1, 100)] == [(True, False), (True, True)]
        assert page.read(0).saving is None


def test_a_save_that_not_all_ranks_make_is_not_waited_for(page: Page) -> None:
    """While a schedule is offered, a step may be due by it or by the old one alone."""
    job = Job(Environment(), SlotWriter(page, 0, 0))
    schedule = TierSchedule(Schedule(), "1:4")
    page.offer_schedule(0, 1, step=6, every=both(6, 6))
    found = {step: schedule.begin(job, step, writing=False) for step in range(1, 13)}
    assert [step for step, one in found.items() if one.storage] == [4, 6, 8, 12]
    assert [step for step, one in found.items() if one.sure] == [4, 12]
    page.confirm_schedule(0, 1)
    later = {step: schedule.begin(job, step, writing=False) for step in range(13, 25)}
    assert [step for step, one in later.items() if one.sure] == [18, 24]
    assert [step for step, one in later.items() if one.memory] == [18, 24]


class ScheduleMachine(RuleBasedStateMachine):
    """An agent that offers and confirms as a master may, a rank that steps as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page.create(1)
        self.writer = SlotWriter(self.page, 0, 0)
        self.writer.say_saving(0, NOTHING)
        self.step_now = 0
        self.number = 0
        self.told: dict[int, tuple[int, int]] = {}
        """Number to (step, memory) of every offer."""
        self.confirmed = 0
        self.seen = (0, 0)

    @rule(ahead=st.integers(1, 6), memory=st.integers(1, 9))
    def offer(self, ahead: int, memory: int) -> None:
        """A newer schedule, for a step to come."""
        self.number += 1
        self.told[self.number] = (self.step_now + ahead, memory)
        self.page.offer_schedule(0, self.number, step=self.step_now + ahead, every=both(memory, 0))

    @rule()
    def confirm(self) -> None:
        """The newest, once the rank has echoed it: the others have, too."""
        saving = saving_of(self.page)
        if saving.seen_id == self.number:
            self.confirmed = self.number
            self.page.confirm_schedule(0, self.number)

    @rule(gap=st.integers(1, 3))
    def step(self, gap: int) -> None:
        """The rank completes a step, and follows what it hears."""
        self.step_now += gap
        heard = self.writer.hear_schedule(self.step_now)
        if heard is not None:
            if heard.number != self.seen[0]:
                self.seen = (heard.number, self.step_now)
            assert (heard.step, heard.every[Tier.MEMORY]) == self.told[heard.number]
            assert heard.confirmed == self.confirmed
            assert heard.number == self.number
        else:
            assert self.seen[0] == self.number

    @invariant()
    def ack_is_the_newest_heard(self) -> None:
        """And the step at which it was heard first."""
        saving = saving_of(self.page)
        assert (saving.seen_id, saving.seen_step) == self.seen

    def teardown(self) -> None:
        os.close(self.page.fd)


TestScheduleMachine = ScheduleMachine.TestCase
TestScheduleMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
