"""Memory for a large state is made while training goes on; who asks for a save waits for it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from checkpoints.led_nodes import alone
from checkpoints.small_models import opened, same, state_of, train
from holdfast.flash.memory.arena import RankArena
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore, ArenaStoreError
from holdfast.flash.server.protocol import Layout
from holdfast.flash.trainer import save
from holdfast.flash.trainer.client import CheckpointError

pytestmark = pytest.mark.train
WAIT_SECONDS = 60.0
EVERY_STEP = holdfast.Schedule(memory_every=1, storage_every=0)


class SlowKeeper(ArenaStore):
    """Makes no arena before it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let = threading.Event(), threading.Event()
        self.refusal = ""

    def make(self, rank: int, layout: Layout) -> RankArena:
        """Wait to be let."""
        self.begun.set()
        assert self.let.wait(WAIT_SECONDS)
        if self.refusal:
            raise ArenaStoreError(self.refusal)
        return super().make(rank, layout)


@pytest.fixture
def arenas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowKeeper]:
    """The keeper that this process's Checkpointers find; every arena is a large one."""
    found = SlowKeeper()
    monkeypatch.setenv("HOLDFAST_ARENA", str(tmp_path / "keeper"))
    monkeypatch.setattr(save, "QUICK_BYTES", 0)
    with alone(tmp_path / "keeper", found):
        yield found
        found.let.set()


def _flash(
    state: tuple[Any, Any], schedule: holdfast.Schedule = EVERY_STEP
) -> holdfast.Checkpointer:
    return opened(None, state, schedule=schedule)


def _trained(flash: holdfast.Checkpointer, state: tuple[Any, Any], step: int) -> None:
    train(*state)
    flash.step(step)


def _until_saved(flash: holdfast.Checkpointer, state: tuple[Any, Any], step: int) -> int:
    """Train on until a step is saved; return it."""
    deadline, skipped = time.monotonic() + WAIT_SECONDS, -1
    while flash.skipped != skipped:
        assert time.monotonic() < deadline
        skipped = flash.skipped
        _trained(flash, state, step)
        step += 1
        time.sleep(0.01)
    return step - 1


def test_training_goes_on_while_its_memory_is_made(arenas: SlowKeeper) -> None:
    """Periodic saves are left out and counted; the first one after it is exact."""
    state = state_of()
    with _flash(state) as flash:
        for step in (1, 2, 3):
            _trained(flash, state, step)
        assert arenas.begun.wait(WAIT_SECONDS)
        assert flash.skipped == 3
        arenas.let.set()
        step = _until_saved(flash, state, 4)
        _until(lambda: Version(0, step) in arenas.held.versions(0))
    again = state_of(seed=1)
    with _flash(again) as flash:
        assert flash.load() == step
    assert same(again[0].state_dict(), state[0].state_dict())


def test_memory_is_asked_for_before_a_save_is_due(arenas: SlowKeeper) -> None:
    """So that the first one need not be left out: after the first step, when moments exist."""
    state = state_of()
    rare = holdfast.Schedule(memory_every=1000, storage_every=0)
    with _flash(state, rare) as flash:
        assert not arenas.begun.is_set()
        _trained(flash, state, 1)
        assert arenas.begun.wait(WAIT_SECONDS)
        arenas.let.set()
        assert flash.skipped == 0


def test_who_asks_for_a_save_waits_for_the_memory(arenas: SlowKeeper) -> None:
    """Also where it was asked for in passing before."""
    state = state_of()
    with _flash(state) as flash:
        _trained(flash, state, 1)
        threading.Timer(0.2, arenas.let.set).start()
        flash.save(2, durable=False)
        assert arenas.let.is_set()
        _until(lambda: Version(0, 2) in arenas.held.versions(0))


def test_memory_that_is_refused_is_said_and_asked_for_again(arenas: SlowKeeper) -> None:
    """A scheduled save warns and training goes on; one that was asked for raises."""
    state, steps = state_of(), itertools.count(1)
    arenas.refusal = "rank 0: an arena of 7 MiB does not fit"
    arenas.let.set()
    with _flash(state) as flash:
        with pytest.warns(RuntimeWarning, match="7 MiB does not fit"):
            _until(lambda: _is_refused(flash, state, next(steps)))
        with pytest.raises(CheckpointError, match="7 MiB does not fit"):
            flash.save(1_000_000, durable=False)
        arenas.refusal = ""
        flash.save(1_000_001, durable=False)
        _until(lambda: Version(0, 1_000_001) in arenas.held.versions(0))


def _is_refused(flash: holdfast.Checkpointer, state: tuple[Any, Any], step: int) -> bool:
    _trained(flash, state, step)
    return flash._preparer._coming is None


def test_memory_made_for_a_dead_trainer_is_its_successors(arenas: SlowKeeper) -> None:
    """It is not made a second time."""
    state = state_of()
    flash = _flash(state)
    _trained(flash, state, 1)
    assert arenas.begun.wait(WAIT_SECONDS)
    assert flash._client is not None
    flash._client._link.close()
    arenas.let.set()
    _until(lambda: arenas.held.ranks == [0])
    arenas.let.clear()
    with _flash(state) as successor:
        successor.save(2, durable=False)
        _until(lambda: Version(0, 2) in arenas.held.versions(0))


def _until(holds: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
