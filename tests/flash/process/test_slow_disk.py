"""A disk that takes its time: training does not wait for it, who asks for a save does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from checkpoints.led_nodes import alone
from checkpoints.small_models import load, same, state_of, train
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import steps

pytestmark = pytest.mark.train
WAIT_SECONDS = 60.0


class SlowDisk(Disk):
    """Synchronises nothing before it is let."""

    def __init__(self) -> None:
        """Begin stuck."""
        self.asked, self.let = threading.Event(), threading.Event()

    def sync(self, handle: int) -> None:
        """Wait to be let."""
        self.asked.set()
        assert self.let.wait(WAIT_SECONDS)
        super().sync(handle)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """The disk of a keeper that this process's Checkpointers find."""
    found = SlowDisk()
    monkeypatch.setenv("HOLDFAST_ARENA", str(tmp_path / "keeper"))
    with alone(tmp_path / "keeper", disk=found):
        yield found
        found.let.set()


def test_while_the_disk_hangs_periodic_saves_are_left_out_and_asked_ones_wait(
    tmp_path: Path, disk: SlowDisk
) -> None:
    """Two slots are being written, one holds the newest: the next find none, and are counted.

    `save()` goes on only when the disk does. All that was asked for is there then, and exact.
    """
    root = tmp_path / "ck"
    model, optimizer = state_of()
    schedule = holdfast.Schedule(memory_every=1, storage_every=0)
    flash = holdfast.Checkpointer(root, model=model, optimizer=optimizer, schedule=schedule)
    train(model, optimizer)
    flash.save(1)
    flash.save(2)
    assert disk.asked.wait(WAIT_SECONDS)
    for step in (3, 4, 5, 6):
        train(model, optimizer)
        flash.step(step)
    assert flash.skipped == 3
    assert (flash.latest(), steps(Disk(), str(root))) == (0, [])
    let_at = _let_once_it_waits(flash, disk)
    flash.save(7)
    assert let_at == [[1, 2, 3]], "with what the slots held"
    flash.wait()
    assert steps(Disk(), str(root)) == [1, 2, 7]
    assert (flash.skipped, flash.latest()) == (3, 7)
    flash.close()
    again, other = state_of(seed=1)
    assert load(root, model=again, optimizer=other) == 7
    assert same(again.state_dict(), model.state_dict())
    assert same(other.state_dict(), optimizer.state_dict())


def _let_once_it_waits(flash: Any, disk: SlowDisk) -> list[list[int]]:
    """Let the disk go on when a save waits for a slot; return the steps in the slots then."""
    seen: list[list[int]] = []
    listen_on, arena = flash._client.listen, flash._preparer.copier.arena

    def listen_and_let(timeout_s: float = 0.0) -> None:
        listen_on(timeout_s)
        if timeout_s and not disk.let.is_set():
            seen.append(sorted(slot.version.step for slot in arena.slots))
            disk.let.set()

    flash._client.listen = listen_and_let
    return seen
