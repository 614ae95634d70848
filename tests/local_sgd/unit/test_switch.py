"""A switch between intervals, as far as one replica alone decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.switching import Agreed, Mode, Running
from holdfast.local_sgd.switch import Switch
from holdfast.local_sgd.sync.group import Group

CONFIG = LocalSGDConfig(local_sgd_warmup_steps=0, local_sgd_sync_interval=4, switching="act")


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


def switch(*, changes: bool = True, clock: Clock | None = None) -> Switch:
    """Return one of a replica that is alone."""
    alone = Group.of_one()
    return Switch(CONFIG, alone, alone, local_only=changes, clock=clock or Clock())


NEWEST = Agreed(looked=40, interval=16, votes=1, origin=40, rounds=9)


def test_who_has_missed_a_look_takes_what_came_of_it() -> None:
    """Interval, where it counts from, and votes; its own rounds stay."""
    one = switch()
    one.rounds = 8
    one.move(Group.of_one(), NEWEST, joined=False)
    assert one.agreed == replace(NEWEST, rounds=8)
    assert [step for step in range(41, 80) if one.stepped(step)] == [56, 72]


def test_who_knows_as_much_goes_on() -> None:
    """Also where another votes otherwise by mistake: nobody has looked later."""
    one = switch()
    one.move(Group.of_one(), NEWEST, joined=True)
    one.move(Group.of_one(), replace(NEWEST, votes=2, interval=8), joined=False)
    assert one.agreed == NEWEST


def test_one_that_joins_takes_rounds_too() -> None:
    """It has looked at nothing; those before any look have what the settings say."""
    one = switch()
    one.move(Group.of_one(), Agreed(interval=4, rounds=3), joined=True)
    assert one.agreed == Agreed(interval=4, rounds=3)
    assert [step for step in range(13, 22) if one.stepped(step)] == [16, 20]


def test_replicas_without_a_choice_change_nothing() -> None:
    """Such as those whose script leaves switching off."""
    one = switch()
    one.move(Group.of_one(), Agreed(), joined=True)
    assert one.running == Running(Mode.LOCAL, 4)


def test_members_begin_with_local_steps_after_a_sync_in_each() -> None:
    """A checkpoint of fixed replicas: the settings say how often members agree."""
    fixed = switch(changes=False)
    fixed.running = Running(Mode.SYNC, 1)
    members = switch()
    members.load(fixed.state())
    assert members.running == Running(Mode.LOCAL, 4)
    fixed.load(fixed.state())
    assert fixed.is_sync


def test_the_time_of_a_change_is_no_part_of_a_reduction() -> None:
    """A round that waits for a roster says nothing of the link."""
    clock = Clock()
    one = switch(clock=clock)
    with one.reducing():
        clock.now += 30.0
        one.move(Group.of_one(), Agreed(), joined=False)
        clock.now += 0.25
    clock.now += 1.0
    one.stepped(1)
    assert (one._steps, one._reductions) == ([1.0], [0.25])


@pytest.mark.parametrize(("changes", "mode"), [(True, Mode.LOCAL), (False, Mode.SYNC)])
def test_an_interval_of_one_step_is_a_sync_of_gradients_of_fixed_replicas_alone(
    *, changes: bool, mode: Mode
) -> None:
    """Members have a round after each step instead: a lost one costs the others nothing."""
    alone = Group.of_one()
    config = LocalSGDConfig(
        local_sgd_warmup_steps=0, local_sgd_sync_interval=1, switching="propose"
    )
    assert Switch(config, alone, alone, local_only=changes).running == Running(mode, 1)
