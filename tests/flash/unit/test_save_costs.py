"""Costs of saving, out of the instants of steps and saves."""

from __future__ import annotations

from holdfast.flash.trainer.save_policy import Meter, SaveCosts
from holdfast.page_sample import TierSaving

MS = 1_000_000


class Clock:
    """Steps and saves of a rank, one after the other."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.now = 1

    def steps(self, number: int, each: int, *, writing: bool = False) -> None:
        """So many steps of `each` ms."""
        for _ in range(number):
            self.now += each * MS
            self.meter.stepped(self.now, writing=writing)
            self.meter.resumed(self.now)

    def save(self, took: int, *, storage: bool = False) -> None:
        """A save of `took` ms after the newest step."""
        began, self.now = self.now, self.now + took * MS
        self.meter.saved(began, self.now, storage=storage)
        self.meter.resumed(self.now)


def test_a_save_to_memory_costs_what_it_stops() -> None:
    """The median: one slow save is not usual, and neither is one long step."""
    clock = Clock()
    clock.save(10)
    assert clock.meter.measured == SaveCosts(memory=TierSaving(stop_ns=10 * MS))
    clock.steps(3, 100)
    clock.steps(1, 5000)
    clock.save(500)
    clock.save(12)
    assert clock.meter.measured == SaveCosts(step_ns=100 * MS, memory=TierSaving(stop_ns=12 * MS))
    clock.meter.waited(10 * MS)
    assert clock.meter.measured.memory.stop_ns == 22 * MS


def test_a_save_to_storage_costs_what_steps_take_longer_meanwhile_too() -> None:
    """Known when it is durable; the time until then is counted from its beginning."""
    clock = Clock()
    clock.steps(10, 100)
    clock.save(5, storage=True)
    clock.meter.waited(2 * MS)
    clock.steps(4, 130, writing=True)
    assert clock.meter.measured.storage.stop_ns == 0
    clock.steps(1, 130)
    assert clock.meter.measured.storage.stop_ns == (5 + 2 + 5 * 30) * MS
    assert clock.meter.measured.storage.durable_ns == (5 + 5 * 130) * MS
    assert clock.meter.measured.memory.stop_ns == 0


def test_one_long_step_is_not_the_write_s_fault() -> None:
    """An evaluation, while something is written or not."""
    clock = Clock()
    clock.steps(6, 100)
    clock.steps(1, 90_000)
    clock.save(5, storage=True)
    clock.steps(3, 100, writing=True)
    clock.steps(1, 60_000, writing=True)
    clock.steps(3, 100)
    assert clock.meter.measured.storage.stop_ns == 5 * MS


def test_without_a_step_to_compare_with_only_the_stop_counts() -> None:
    """A rank that is always writing cannot know what a step would take otherwise."""
    clock = Clock()
    clock.save(5, storage=True)
    clock.steps(3, 100, writing=True)
    clock.steps(1, 100)
    assert clock.meter.measured.storage.stop_ns == 5 * MS
