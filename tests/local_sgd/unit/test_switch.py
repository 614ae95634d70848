"""Choices of an interval, as far as one replica alone makes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.driver.replicas import FixedMembers
from holdfast.local_sgd.policies.switching import Agreed, Mode, RunningWorld
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.units import Unit
from holdfast.local_sgd.triggers.by_cost import ByCost, ByCostInRounds
from holdfast.local_sgd.triggers.trigger import Change
from holdfast_wire.messages import SyncChosen

CONFIG = LocalSGDConfig(local_sgd_warmup_steps=0, local_sgd_sync_interval=4, switching="act")
NEWEST = Agreed(round=7, interval=16, votes=1, since=5, step=40)
SLOW = [0.1, 10.0, 40.0]
"""A step, a reduction of a hundred of these, steps so far."""


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


def alone() -> FixedMembers:
    """Return a replica without others."""
    return FixedMembers(Group.of_one(), Group.of_one())


def change(newest: Agreed, *, joined: bool) -> Change:
    """Return a change after which a replica is alone."""
    return Change(
        store=None,
        rounds=0,
        steps=0,
        joined=joined,
        is_left_over=False,
        is_up=False,
        agreed=newest,
    )


def switch(clock: Clock | None = None, told: list[SyncChosen] | None = None) -> ByCostInRounds:
    """Return one of a replica that is alone, and where it tells its choices."""
    kept: list[SyncChosen] = [] if told is None else told
    return ByCostInRounds(CONFIG, alone(), first="a", report=kept.append, clock=clock or Clock())


def due(one: ByCostInRounds, steps: int) -> list[int]:
    """Return the first of so many steps after which a round is due; the round is made then."""
    return [step for step in range(1, steps + 1) if one.ends_round(step)][:1]


def test_who_has_missed_a_round_takes_what_came_of_it() -> None:
    """The interval counts from there: the round was given to it."""
    one = switch()
    one.ends_round(1)
    one.move(change(NEWEST, joined=False))
    assert one.agreed == replace(NEWEST, since=0)
    assert due(one, 20) == [16]


def test_who_has_chosen_as_late_goes_on() -> None:
    """Nobody has chosen later."""
    one = switch()
    one.move(change(NEWEST, joined=True))
    one.move(change(replace(NEWEST, votes=2, interval=8), joined=False))
    assert one.agreed == NEWEST


def test_one_that_joins_is_due_with_the_one_whose_steps_it_takes() -> None:
    """Also before any round, with the interval of the settings."""
    one = switch()
    one.move(change(NEWEST, joined=True))
    assert due(one, 20) == [11]
    early = switch()
    early.move(change(Agreed(interval=4, since=3), joined=True))
    assert due(early, 9) == [1]


def test_replicas_without_a_choice_change_nothing() -> None:
    """Such as those whose script leaves switching off."""
    one = switch()
    one.move(change(Agreed(), joined=True))
    assert one.running == RunningWorld(Mode.LOCAL, 4)


def test_a_choice_is_told_with_the_next_round() -> None:
    """All who come to that have finished the round of the choice; who dies before may be alone."""
    told: list[SyncChosen] = []
    one = switch(told=told)
    for number in (1, 2, 3):
        one.received([SLOW, SLOW], number)
    assert one.running.interval == 128
    assert told == []
    one.received([SLOW, SLOW], 4)
    assert [(chosen.step, chosen.interval_before, chosen.interval) for chosen in told] == [
        (40, 4, 128)
    ]
    one.received([SLOW, SLOW], 5)
    assert len(told) == 1


def test_who_takes_a_choice_of_others_tells_it_where_it_is_the_first() -> None:
    """Else nobody would: the others that know of it are not the first."""
    told: list[SyncChosen] = []
    one = switch(told=told)
    one.move(change(NEWEST, joined=False))
    one.received([SLOW], 8)
    assert [(chosen.step, chosen.interval) for chosen in told] == [(40, 16)]


def test_one_that_joins_has_nothing_to_measure() -> None:
    """The others go on choosing; without any reduction nobody does."""
    one = switch()
    for number in range(1, 4):
        one.received([SLOW, [0.0, -1.0, 0.0]], number)
    assert one.running.interval == 128
    other = switch()
    for number in range(1, 4):
        other.received([SLOW, [0.1, -1.0, 40.0]], number)
    assert other.running == RunningWorld(Mode.LOCAL, 4)


def test_figures_go_with_the_first_unit_alone() -> None:
    """And until a round has finished it: a round that is cut short tells them again."""
    clock = Clock()
    one = switch(clock)
    clock.now += 2.0
    one.ends_round(1)
    first, second = (Unit(name, tuple) for name in "ab")
    assert one.figures([first, second]) == [2.0, -1.0, 1.0]
    assert one.figures([first, second]) == [2.0, -1.0, 1.0]
    assert one.figures([second]) == []
    one.received([[2.0, -1.0, 1.0]], 1)
    assert one.figures([first]) == [0.0, -1.0, 1.0]


def test_members_begin_with_local_steps_after_a_sync_in_each() -> None:
    """A checkpoint of fixed replicas: the settings say how often members agree."""
    fixed = ByCost(CONFIG, alone())
    fixed.running = RunningWorld(Mode.SYNC, 1)
    members = switch()
    members.load({"steps": 0, "alone": 0, **fixed.state()})
    assert members.running == RunningWorld(Mode.LOCAL, 4)
    fixed.load({"steps": 0, "alone": 0, **fixed.state()})
    assert fixed.is_sync


def test_a_checkpoint_keeps_the_choice_and_the_steps_since_the_round() -> None:
    """Among members, and from them to fixed replicas."""
    one = switch()
    one.move(change(NEWEST, joined=True))
    one.ends_round(46)
    other = switch()
    other.load({"steps": 0, "alone": 6, **one.state()})
    assert other.agreed == one.agreed == replace(NEWEST, since=6)
    fixed = ByCost(CONFIG, alone())
    fixed.load({"steps": 0, "alone": 6, **one.state()})
    assert [step for step in range(47, 60) if fixed.ends_round(step)] == [56]


def test_a_reduction_in_which_members_change_tells_nothing() -> None:
    """It waits for a roster, or others give its end: neither says anything of the link."""
    clock = Clock()
    one = switch(clock)
    with one.reducing():
        clock.now += 30.0
        one.move(change(Agreed(), joined=False))
        clock.now += 0.25
    clock.now += 1.0
    one.ends_round(1)
    assert one.figures([Unit("a", tuple)]) == [1.25, -1.0, 1.0]
    with one.reducing():
        clock.now += 0.25
    one.ends_round(2)
    assert one.figures([Unit("a", tuple)])[1] == 0.25


@pytest.mark.parametrize("interval", [1, 2])
def test_only_fixed_replicas_take_an_interval_of_one_for_a_sync_of_gradients(
    interval: int,
) -> None:
    """Members have a round after each step instead: a lost one costs the others nothing."""
    config = LocalSGDConfig(
        local_sgd_warmup_steps=0, local_sgd_sync_interval=interval, switching="propose"
    )
    assert ByCostInRounds(config, alone(), first="a").running == RunningWorld(Mode.LOCAL, interval)
    assert ByCost(config, alone()).is_sync == (interval == 1)


def test_a_sync_in_each_step_does_not_begin_with_replicas_that_have_parted() -> None:
    """Averaged gradients bring none together: a round comes first, and measurements lead there."""
    told: list[SyncChosen] = []
    config = replace(CONFIG, local_sgd_sync_interval=1)
    fixed = ByCost(config, alone(), report=told.append)
    fixed.load({"steps": 10, "alone": 1})
    assert fixed.running == RunningWorld(Mode.LOCAL, 2)
    assert [step for step in range(11, 15) if fixed.ends_round(step)] == [11, 13]
    assert [(one.interval_before, one.interval) for one in told] == [(1, 2)]
    of_each_step = ByCostInRounds(config, alone(), first="a")
    of_each_step.ends_round(1)
    fixed.load({"steps": 0, "alone": 1, **of_each_step.state()})
    assert fixed.running == RunningWorld(Mode.LOCAL, 2)
    fresh = ByCost(config, alone())
    fresh.load({"steps": 0, "alone": 0})
    assert fresh.is_sync


def test_members_go_on_with_the_steps_of_a_checkpoint_without_a_choice() -> None:
    """The first round comes when it would have come."""
    one = switch()
    one.load({"steps": 43, "alone": 3})
    assert due(one, 9) == [1]


def test_a_later_choice_never_has_a_lower_step() -> None:
    """The one with the most steps is lost: people read of what the others choose then, too."""
    told: list[SyncChosen] = []
    one = switch(told=told)
    for number in range(1, 5):
        one.received([[0.1, 1.0, 1003.0], SLOW], number)
    for number in range(5, 9):
        one.received([[0.1, 0.0, 611.0]] * 2, number)
    assert [chosen.step for chosen in told] == [1003, 1004]
