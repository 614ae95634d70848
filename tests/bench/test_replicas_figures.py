"""Losses, joins and goodput of replicas are read from the ranks' logs."""

from __future__ import annotations

import pytest

from bench.recovery.steplog import Event
from bench.replicas import figures
from bench.replicas import results as r

_RANKS = 4


def _step(t: float, step: int, round_id: int, pids: range) -> list[Event]:
    """Return a step that so many ranks have made, the last of them at `t`."""
    return [
        Event(t=t - 0.001 * at, event="step", rank=0, pid=pid, round=round_id, world=len(pids),
              step=step)
        for at, pid in enumerate(pids)
    ]  # fmt: skip


def _course() -> list[Event]:
    """Steps of 1 s by ranks 1 to 4; 1 dies at 10.5; 2 to 4 go on; 5 joins in step 15."""
    events = [one for step in range(1, 11) for one in _step(step, step, 1, range(1, 5))]
    events += _step(12.0, 11, 2, range(2, 5)) + _step(13.2, 12, 2, range(2, 5))
    events += _step(14.4, 13, 2, range(2, 5)) + _step(15.6, 14, 2, range(2, 5))
    events += _step(17.0, 15, 3, range(2, 6)) + _step(18.1, 16, 3, range(2, 6))
    return events + _step(19.1, 17, 3, range(2, 6))


def test_a_step_is_whole_once_all_ranks_of_its_round_have_made_it() -> None:
    """A line of one rank twice is no second rank; the time is the last one's."""
    events = _step(1.0, 1, 1, range(1, 4))
    half = [Event(t=0.5, event="step", rank=0, pid=1, round=1, world=4, step=1)] * 4
    [only] = figures.whole_steps([*events, *half])
    assert (only.t, only.step, only.world) == (1.0, 1, 3)


def test_a_loss_counts_from_the_kill_to_the_next_rounds_first_whole_step() -> None:
    """A step that was whole in the old round counts for nothing, though it comes after the kill."""
    late = _step(10.7, 11, 1, range(1, 5))
    for events in (_course(), _course() + late):
        found = figures.loss(events, 10.5, 1, _RANKS, 4)
        assert found is not None
        assert found[r.TOTAL] == pytest.approx(1500)
        assert found[r.ORDINARY] == pytest.approx(1000)
        assert found[r.BEYOND] == pytest.approx(1500 - 1000 * 4 / 3)
        assert (found[r.BEGUN_AGAIN], found[r.REDONE]) == (0, 0)


def test_no_loss_is_told_before_a_whole_step_has_followed() -> None:
    """Not by the lines of some ranks."""
    events = [one for one in _course() if one.t <= 10.0]
    assert figures.loss(events, 10.5, 1, _RANKS, 4) is None
    assert figures.loss(events + _step(12.0, 11, 2, range(2, 5))[:2], 10.5, 1, _RANKS, 4) is None


def test_survivors_that_began_again_and_steps_made_again_are_counted() -> None:
    """A world of four whose ranks are all new, and that makes steps 9 and 10 again."""
    events = [one for step in range(1, 11) for one in _step(step, step, 1, range(1, 5))]
    events += _step(14.0, 9, 2, range(11, 15))
    found = figures.loss(events, 10.5, 1, _RANKS, 4)
    assert found is not None
    assert (found[r.BEGUN_AGAIN], found[r.REDONE]) == (3, 2)


def test_steps_that_were_thrown_away_are_counted_once_for_all_ranks() -> None:
    """Each survivor of torchft says so of the same step."""
    thrown = [Event(t=11.0, event="discarded", rank=0, pid=pid, step=11) for pid in (2, 3, 4)]
    found = figures.loss(_course() + thrown, 10.5, 1, _RANKS, 4)
    assert found is not None
    assert found[r.DISCARDED] == 1


def test_a_joiners_pause_is_what_is_beyond_ordinary_steps() -> None:
    """15.6 to 18.1 where one step of three ranks and one of four take 1.2 and 1.0 s."""
    found = figures.join(_course(), 10.5, _RANKS)
    assert found is not None
    assert found[r.AWAY] == pytest.approx(6500)
    assert found[r.PAUSE] == pytest.approx(1000 * (2.5 - 1.2 - 1.0))
    assert r.UNCOVERED not in found


def test_a_step_that_the_killed_rank_had_made_is_no_return_of_it() -> None:
    """The others write their lines of it after the kill; their next steps are of another round."""
    late = [one for one in _step(10.6, 10, 1, range(1, 5)) if one.pid != 1]
    events = [one for one in _course() if (one.round, one.step) != (1, 10) or one.pid == 1]
    events = [*events, *late]
    assert figures.join(events, 10.5, _RANKS) == figures.join(_course(), 10.5, _RANKS)


@pytest.mark.parametrize(("transfer", "uncovered"), [(0.5, 300.0), (1.2, 300.0), (1.4, 100.0)])
def test_a_step_covers_a_joiners_transfer(transfer: float, uncovered: float) -> None:
    """Of a transfer that is longer than a step of three ranks, 1.2 s, the rest is not held."""
    given = Event(t=17.0, event="given", rank=0, pid=9, seconds=transfer)
    found = figures.join([*_course(), given], 10.5, _RANKS)
    assert found is not None
    assert found[r.GIVEN] == pytest.approx(1000 * transfer)
    assert found[r.UNCOVERED] == pytest.approx(uncovered)


def test_a_world_that_comes_back_as_a_whole_has_no_joiner() -> None:
    """A restart has no pause of others."""
    events = [one for step in range(1, 11) for one in _step(step, step, 1, range(1, 5))]
    events += _step(14.0, 11, 2, range(11, 15)) + _step(15.0, 12, 2, range(11, 15))
    found = figures.join(events, 10.5, _RANKS)
    assert found is not None
    assert list(found) == [r.AWAY]
    assert found[r.AWAY] == pytest.approx(3500)
    assert figures.join(events[:-4], 10.5, _RANKS) is None


def test_ranks_are_settled_after_some_steps_of_all() -> None:
    """Not with a rank missing, and not by steps before the moment."""
    steps = figures.whole_steps(_course())
    assert figures.settled(steps, _RANKS, 16.0, 3)
    assert not figures.settled(steps, _RANKS, 17.5, 3)
    assert not figures.settled([one for one in steps if one.t < 16], _RANKS, 0.0, 3)


def test_goodput_counts_each_step_once() -> None:
    """8 steps of 1 s in 10 s; one of them again; a step of three ranks is less if it has less."""
    events = [one for one in _course() if one.t <= 19.1]
    window = {"begin": 9.1, "end": 19.1, "ranks": _RANKS}
    whole = figures.goodput(events, **window, shares=False)  # type: ignore[arg-type]
    fewer = figures.goodput(events, **window, shares=True)  # type: ignore[arg-type]
    assert whole[r.SHARE] == pytest.approx(0.8)
    assert fewer[r.SHARE] == pytest.approx(0.7)
    again = events + _step(18.9, 14, 4, range(20, 24))
    assert figures.goodput(again, **window, shares=False)[r.SHARE] == pytest.approx(0.8)  # type: ignore[arg-type]
    assert figures.goodput(again, **window, shares=False)[r.REDONE] == 1  # type: ignore[arg-type]
