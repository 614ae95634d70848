"""Sums of the samples of a node's ranks."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import Any

import pytest

from holdfast.page import Page
from holdfast.page_sample import RankSample, SavingSample, Section, TierSaving
from holdfast_agent.policies import rank_progress
from holdfast_agent.policies.rank_progress import Rank
from holdfast_wire.messages import (
    BarrierAck,
    BarrierReached,
    RankSection,
    SavingReport,
    Tier,
    TierCost,
)


def _blank() -> RankSample:
    """Return the sample of a rank that has claimed its slot, and done nothing yet."""
    with closing(Page.create(1)) as page:
        return dataclasses.replace(page.read(0), pid=100, round=3, attached=True)


BLANK = _blank()


def _rank(exit_code: int | None = None, **fields: Any) -> Rank:
    return Rank(dataclasses.replace(BLANK, **fields), 77, 1_000_000_000, exit_code)


def test_progress_tells_what_the_page_says() -> None:
    """Steps, times in seconds, loss and section arrive as they were written."""
    rank = _rank(
        step=12,
        step_ns=5_000_000_000,
        step_duration_ns=30_000_000,
        samples=96,
        loss=2.5,
        section=Section.TRAIN,
        first_step=11,
        first_step_ns=1_500_000_000,
        sync_ns=250_000_000,
        work_ns=20_000_000,
    )
    found = rank_progress.progress(1, rank, 3, 5_200_000_000)
    assert (found.local_rank, found.step, found.samples, found.loss) == (1, 12, 96, 2.5)
    assert found.pid == 77
    assert found.step_seconds == pytest.approx(0.03)
    assert found.since_step_seconds == pytest.approx(0.2)
    assert found.first_step_seconds == pytest.approx(0.5)
    assert found.sync_seconds == pytest.approx(0.25)
    assert found.work_seconds == pytest.approx(0.02)
    assert found.section is RankSection.TRAIN
    assert found.has_sdk


def test_a_rank_that_has_not_claimed_its_slot_reports_no_steps() -> None:
    """Progress that an older process left in the page does not count for this round."""
    found = rank_progress.progress(0, _rank(round=2, step=99, attached=True), 3, 0)
    assert (found.round, found.step, found.has_sdk) == (3, 0, False)
    assert found.section is RankSection.INIT


def test_a_rank_before_its_first_step_has_no_times() -> None:
    """Zero means none, not the age of the machine."""
    found = rank_progress.progress(0, _rank(), 3, 9_000_000_000)
    assert (found.since_step_seconds, found.first_step_seconds, found.loss) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("section", list(Section))
def test_every_section_has_its_name_on_the_wire(section: Section) -> None:
    """The page's sections and the wire's are the same list."""
    assert rank_progress.progress(0, _rank(section=section), 3, 0).section.name == section.name


def test_the_first_step_is_the_last_ranks() -> None:
    """A round has its first step when every rank has; the time is the latest one's."""
    early = _rank(first_step=5, first_step_ns=10)
    late = _rank(first_step=5, first_step_ns=30)
    assert rank_progress.first_step({0: early}, 3) == (5, 10)
    assert rank_progress.first_step({0: early, 1: late}, 3) == (5, 30)
    assert rank_progress.first_step({0: early, 1: _rank()}, 3) is None
    assert rank_progress.first_step({0: early, 1: dataclasses.replace(late)}, 4) is None
    assert rank_progress.first_step({}, 3) is None


def test_the_common_step_is_the_slowest_ranks() -> None:
    """Progress of a node is what all of its ranks have completed."""
    assert rank_progress.common_step({0: _rank(step=9), 1: _rank(step=8)}, 3) == 8
    assert rank_progress.common_step({0: _rank(step=9), 1: _rank(round=2, step=8)}, 3) == 0
    assert rank_progress.common_step({}, 3) == 0


def test_a_barrier_is_acked_once_every_rank_has_seen_it() -> None:
    """The echo is the latest step at which a rank saw it; one rank that has not holds it back."""
    seen, later = _rank(ack_id=4, ack_step=20), _rank(ack_id=4, ack_step=22)
    assert rank_progress.barrier_ack({0: seen, 1: later}, 4) == BarrierAck(
        barrier_id=4, seen_at_step=22
    )
    assert rank_progress.barrier_ack({0: seen, 1: _rank(ack_id=3, ack_step=9)}, 4) is None
    assert rank_progress.barrier_ack({}, 4) is None


def _answered(step: int = 30, barrier: int = 4, **fields: Any) -> Rank:
    return _rank(answered_id=barrier, answered_step=step, **fields)


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        pytest.param([_answered(exit_code=0), _answered(exit_code=0)], True, id="all-exited"),
        pytest.param([_answered(barrier_complete=True)], True, id="flushed-but-not-gone"),
        pytest.param([_answered(exit_code=0), _answered()], False, id="one-still-saves"),
        pytest.param([_answered(exit_code=0), _answered(exit_code=1)], False, id="one-failed"),
        pytest.param([_answered(exit_code=-9)], False, id="one-was-killed"),
        pytest.param([_rank(exit_code=0)], False, id="ended-without-an-arm"),
        pytest.param(
            [_answered(exit_code=0), _answered(step=31, exit_code=0)], False, id="other-steps"
        ),
        pytest.param([], False, id="no-ranks"),
    ],
)
def test_a_barrier_is_reached_when_all_ranks_saved_the_same_step(
    *, found: list[Rank], reached: bool
) -> None:
    """A node may only report a barrier from which nothing has to be redone."""
    expected = BarrierReached(barrier_id=4, step=30) if reached else None
    assert rank_progress.barrier(dict(enumerate(found))) == expected


@pytest.mark.parametrize(
    ("found", "count"),
    [
        pytest.param([_answered(exit_code=0), _answered()], 1, id="one-still-saves"),
        pytest.param([_answered(barrier_complete=True)], 0, id="saved-but-runs"),
        pytest.param([_answered(barrier_complete=True, exit_code=-9)], 1, id="killed-afterwards"),
        pytest.param([_answered(exit_code=1), _rank(exit_code=0)], 0, id="failed-or-not-asked"),
        pytest.param([], 0, id="no-ranks"),
    ],
)
def test_ranks_that_saved_and_ended_are_counted(*, found: list[Rank], count: int) -> None:
    """With those that run they tell a new master that the world lacks nobody."""
    assert rank_progress.ended_at_barrier(dict(enumerate(found))) == count


def _saving(**fields: Any) -> SavingSample:
    tiers = {Tier.MEMORY: TierSaving(), Tier.STORAGE: TierSaving()}
    blank = SavingSample(step_ns=0, tiers=tiers, seen_id=0, seen_step=0)
    return dataclasses.replace(blank, **fields)


def test_the_slowest_rank_is_what_saving_costs_a_node() -> None:
    """All wait for it; the step at which a schedule was heard is the latest of theirs."""
    one = _saving(
        step_ns=2_000_000,
        tiers={
            Tier.MEMORY: TierSaving(stop_ns=2_000_000),
            Tier.STORAGE: TierSaving(stop_ns=5_000_000, every=9),
        },
        seen_id=3,
        seen_step=11,
    )
    other = _saving(
        tiers={
            Tier.MEMORY: TierSaving(stop_ns=1_000_000),
            Tier.STORAGE: TierSaving(stop_ns=7_000_000, durable_ns=500_000_000, every=9),
        },
        seen_id=3,
        seen_step=12,
    )
    found = rank_progress.saving({0: _rank(saving=one), 1: _rank(saving=other)})
    assert found == SavingReport(
        step_seconds=0.002,
        costs=(
            TierCost(tier=Tier.MEMORY, stop_seconds=0.002),
            TierCost(tier=Tier.STORAGE, stop_seconds=0.007, durable_seconds=0.5, every=9),
        ),
        seen_id=3,
        seen_step=12,
    )


def test_nothing_is_told_of_a_schedule_that_a_rank_has_not_heard_of() -> None:
    """And nothing at all where one rank does not follow it."""
    old, new = _saving(seen_id=3, seen_step=11), _saving(seen_id=4, seen_step=12)
    found = rank_progress.saving({0: _rank(saving=old), 1: _rank(saving=new)})
    assert found is not None
    assert (found.seen_id, found.seen_step) == (0, 0)
    assert rank_progress.saving({0: _rank(saving=old), 1: _rank()}) is None
    assert rank_progress.saving({}) is None
