"""Deadlines in a heap."""

from __future__ import annotations

from holdfast_master.job.state.timers import Timer, Timers


def test_the_earliest_comes_first_and_only_when_due() -> None:
    """Popped in order of time."""
    timers = Timers()
    timers.set(Timer.SILENCE, 3.0, 1)
    timers.set(Timer.SILENCE, 1.0, 2)
    timers.set(Timer.STORE, 2.0)
    assert timers.next() == 1.0
    assert list(timers.pop_due(2.0)) == [(Timer.SILENCE, 2), (Timer.STORE, 0)]
    assert timers.next() == 3.0


def test_setting_again_moves_and_ensuring_does_not() -> None:
    """One deadline for each key."""
    timers = Timers()
    timers.set(Timer.STORE, 5.0)
    timers.set(Timer.STORE, 7.0)
    timers.set(Timer.STORE, 7.0)
    timers.ensure(Timer.STORE, 1.0)
    timers.ensure(Timer.GROW, 9.0)
    assert list(timers.pop_due(8.0)) == [(Timer.STORE, 0)]
    assert len(timers) == 1
    assert timers.running(Timer.GROW)


def test_cancelling_forgets() -> None:
    """Also what was never set."""
    timers = Timers()
    timers.set(Timer.STORE, 5.0)
    timers.cancel(Timer.STORE, Timer.END)
    assert timers.next() is None
    assert not list(timers.pop_due(100.0))


def test_what_is_set_while_popping_counts_too() -> None:
    """A deadline can lead to another that is due already."""
    timers = Timers()
    timers.set(Timer.STORE, 1.0)
    popped = []
    for key in timers.pop_due(5.0):
        popped.append(key[0])
        if key[0] is Timer.STORE:
            timers.set(Timer.GROW, 2.0)
    assert popped == [Timer.STORE, Timer.GROW]
