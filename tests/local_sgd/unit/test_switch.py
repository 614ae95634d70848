"""Choices of an interval, as far as one replica alone makes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.switching import Agreed, Mode, Running
from holdfast.local_sgd.switch import RoundSwitch, Switch
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.units import Unit
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


def switch(clock: Clock | None = None, told: list[SyncChosen] | None = None) -> RoundSwitch:
    """Return one of a replica that is alone, and where it tells its choices."""
    alone = Group.of_one()
    kept: list[SyncChosen] = [] if told is None else told
    return RoundSwitch(CONFIG, alone, alone, first="a", tell=kept.append, clock=clock or Clock())


def due(one: RoundSwitch, steps: int) -> list[int]:
    """Return the first of so many steps after which a round is due; the round is made then."""
    return [step for step in range(1, steps + 1) if one.stepped(step)][:1]


def test_who_has_missed_a_round_takes_what_came_of_it() -> None:
    """The interval counts from there: the round was given to it."""
    one = switch()
    one.stepped(1)
    one.move(Group.of_one(), NEWEST, joined=False)
    assert one.agreed == replace(NEWEST, since=0)
    assert due(one, 20) == [16]


def test_who_has_chosen_as_late_goes_on() -> None:
    """Nobody has chosen later."""
    one = switch()
    one.move(Group.of_one(), NEWEST, joined=True)
    one.move(Group.of_one(), replace(NEWEST, votes=2, interval=8), joined=False)
    assert one.agreed == NEWEST


def test_one_that_joins_is_due_with_the_one_whose_steps_it_takes() -> None:
    """Also before any round, with the interval of the settings."""
    one = switch()
    one.move(Group.of_one(), NEWEST, joined=True)
    assert due(one, 20) == [11]
    early = switch()
    early.move(Group.of_one(), Agreed(interval=4, since=3), joined=True)
    assert due(early, 9) == [1]


def test_replicas_without_a_choice_change_nothing() -> None:
    """Such as those whose script leaves switching off."""
    one = switch()
    one.move(Group.of_one(), Agreed(), joined=True)
    assert one.running == Running(Mode.LOCAL, 4)


def test_a_choice_is_told_with_the_next_round() -> None:
    """All who come to that have finished the round of the choice; who dies before may be alone."""
    told: list[SyncChosen] = []
    one = switch(told=told)
    for number in (1, 2, 3):
        one.hears([SLOW, SLOW], number)
    assert one.running.interval == 128
    assert told == []
    one.hears([SLOW, SLOW], 4)
    assert [(chosen.step, chosen.interval_before, chosen.interval) for chosen in told] == [
        (40, 4, 128)
    ]
    one.hears([SLOW, SLOW], 5)
    assert len(told) == 1


def test_who_takes_a_choice_of_others_tells_it_where_it_is_the_first() -> None:
    """Else nobody would: the others that know of it are not the first."""
    told: list[SyncChosen] = []
    one = switch(told=told)
    one.move(Group.of_one(), NEWEST, joined=False)
    one.hears([SLOW], 8)
    assert [(chosen.step, chosen.interval) for chosen in told] == [(40, 16)]


def test_one_that_joins_has_nothing_to_measure() -> None:
    """The others go on choosing; without any reduction nobody does."""
    one = switch()
    for number in range(1, 4):
        one.hears([SLOW, [0.0, -1.0, 0.0]], number)
    assert one.running.interval == 128
    other = switch()
    for number in range(1, 4):
        other.hears([SLOW, [0.1, -1.0, 40.0]], number)
    assert other.running == Running(Mode.LOCAL, 4)


def test_figures_go_with_the_first_unit_alone() -> None:
    """And until a round has finished it: a round that is cut short tells them again."""
    clock = Clock()
    one = switch(clock)
    clock.now += 2.0
    one.stepped(1)
    first, second = (Unit(name, tuple) for name in "ab")
    assert one.says([first, second]) == [2.0, -1.0, 1.0]
    assert one.says([first, second]) == [2.0, -1.0, 1.0]
    assert one.says([second]) == []
    one.hears([[2.0, -1.0, 1.0]], 1)
    assert one.says([first]) == [0.0, -1.0, 1.0]


def test_members_begin_with_local_steps_after_a_sync_in_each() -> None:
    """A checkpoint of fixed replicas: the settings say how often members agree."""
    alone = Group.of_one()
    fixed = Switch(CONFIG, alone, alone)
    fixed.running = Running(Mode.SYNC, 1)
    members = switch()
    members.load(fixed.state(), alone=0)
    assert members.running == Running(Mode.LOCAL, 4)
    fixed.load(fixed.state(), alone=0)
    assert fixed.is_sync


def test_a_checkpoint_keeps_the_choice_and_the_steps_since_the_round() -> None:
    """Among members, and from them to fixed replicas."""
    one = switch()
    one.move(Group.of_one(), NEWEST, joined=True)
    one.stepped(46)
    other = switch()
    other.load(one.state(), alone=6)
    assert other.agreed == one.agreed == replace(NEWEST, since=6)
    fixed = Switch(CONFIG, Group.of_one(), Group.of_one())
    fixed.load(one.state(), alone=6)
    assert [step for step in range(47, 60) if fixed.stepped(step)] == [56]


def test_a_reduction_in_which_members_change_tells_nothing() -> None:
    """It waits for a roster, or others give its end: neither says anything of the link."""
    clock = Clock()
    one = switch(clock)
    with one.reducing():
        clock.now += 30.0
        one.move(Group.of_one(), Agreed(), joined=False)
        clock.now += 0.25
    clock.now += 1.0
    one.stepped(1)
    assert one.says([Unit("a", tuple)]) == [1.25, -1.0, 1.0]
    with one.reducing():
        clock.now += 0.25
    one.stepped(2)
    assert one.says([Unit("a", tuple)])[1] == 0.25


@pytest.mark.parametrize("interval", [1, 2])
def test_only_fixed_replicas_take_an_interval_of_one_for_a_sync_of_gradients(
    interval: int,
) -> None:
    """Members have a round after each step instead: a lost one costs the others nothing."""
    alone = Group.of_one()
    config = LocalSGDConfig(
        local_sgd_warmup_steps=0, local_sgd_sync_interval=interval, switching="propose"
    )
    assert RoundSwitch(config, alone, alone, first="a").running == Running(Mode.LOCAL, interval)
    assert Switch(config, alone, alone).is_sync == (interval == 1)


def test_a_sync_in_each_step_does_not_begin_with_replicas_that_have_parted() -> None:
    """Averaged gradients bring none together: a round comes first, and measurements lead there."""
    told: list[SyncChosen] = []
    alone = Group.of_one()
    config = replace(CONFIG, local_sgd_sync_interval=1)
    fixed = Switch(config, alone, alone, tell=told.append)
    fixed.begin(steps=10, alone=1)
    assert fixed.running == Running(Mode.LOCAL, 2)
    assert [step for step in range(11, 15) if fixed.stepped(step)] == [11, 13]
    assert [(one.interval_before, one.interval) for one in told] == [(1, 2)]
    of_each_step = RoundSwitch(config, alone, alone, first="a")
    of_each_step.stepped(1)
    fixed.load(of_each_step.state(), alone=1)
    assert fixed.running == Running(Mode.LOCAL, 2)
    fresh = Switch(config, alone, alone)
    fresh.begin(steps=0, alone=0)
    assert fresh.is_sync


def test_members_go_on_with_the_steps_of_a_checkpoint_without_a_choice() -> None:
    """The first round comes when it would have come."""
    one = switch()
    one.begin(steps=43, alone=3)
    assert due(one, 9) == [1]


def test_a_later_choice_never_has_a_lower_step() -> None:
    """The one with the most steps is lost: people read of what the others choose then, too."""
    told: list[SyncChosen] = []
    one = switch(told=told)
    for number in range(1, 5):
        one.hears([[0.1, 1.0, 1003.0], SLOW], number)
    for number in range(5, 9):
        one.hears([[0.1, 0.0, 611.0]] * 2, number)
    assert [chosen.step for chosen in told] == [1003, 1004]
