"""Takeover of a dead agent's arenas, wherever they outlived it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from checkpoints.filled_arenas import PLENTY, fill, grant, layout, let_go, memory_folder
from holdfast.flash.memory.arena import Arena, SlotWord
from holdfast.flash.memory.fdstore_backend import FdStoreBackend
from holdfast.flash.memory.file_backend import FileBackend
from holdfast.flash.memory.recovery import ArenaBackend
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast_cli.runner.fd_store import FdStore, close_all

_MOST_READ = 10_000


class Home(Protocol):
    """The place of one node's arenas, as a test sees it."""

    def place(self) -> ArenaBackend:
        """Return it, as the next agent has it."""

    def die(self, place: ArenaBackend) -> None:
        """Close what a SIGKILL of its agent closes."""

    def open(self, number: int) -> int:
        """Return a descriptor of one of the arenas, as nobody should."""

    def count(self) -> int:
        """Return how many arenas there are, with what else takes room."""


@dataclass
class Files:
    """A directory in memory."""

    folder: Path

    def place(self) -> ArenaBackend:
        """Lock it."""
        return FileBackend(str(self.folder), "job")

    def die(self, place: ArenaBackend) -> None:
        """The lock goes; its file stays."""
        assert isinstance(place, FileBackend)
        os.close(place._lock)

    def open(self, number: int) -> int:
        """Open the file."""
        return os.open(sorted(self.folder.glob("arena-*"))[number], os.O_RDWR)

    def count(self) -> int:
        """Files; while an agent lives the lock is none."""
        return len(list(self.folder.glob("arena-*"))) or len(list(self.folder.iterdir()))


@dataclass
class Runner:
    """A runner that holds descriptors."""

    shelf: FdStore

    def place(self) -> ArenaBackend:
        """Connect."""
        return FdStoreBackend(self.shelf.connect().detach(), "job")

    def die(self, place: ArenaBackend) -> None:
        """The connection goes, and the runner sees it."""
        assert isinstance(place, FdStoreBackend)
        assert place._socket is not None
        place._socket.close()
        self.shelf.disconnect()

    def open(self, number: int) -> int:
        """Open the memory once more."""
        return os.open(f"/proc/self/fd/{list(self.shelf._items.values())[number]}", os.O_RDWR)

    def count(self) -> int:
        """Descriptors, once it has heard what was freed."""
        self.shelf.take_in(_MOST_READ)
        return self.shelf.count


@pytest.fixture(params=["files", "runner"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """Each place that there is."""
    if request.param == "files":
        with memory_folder(tmp_path.name) as folder:
            yield Files(folder)
    else:
        shelf = FdStore(0, close_all, lambda: True)
        yield Runner(shelf)
        shelf.disconnect()
        shelf.clear()


def _arenas(home: Home) -> ArenaStore:
    return ArenaStore(lambda: PLENTY, backend=home.place())


def _leave(home: Home, *, steps: tuple[int, ...] = (5, 6), hash_it: bool = True) -> None:
    """Leave what a killed agent with two ranks leaves."""
    place = home.place()
    dead = ArenaStore(lambda: PLENTY, backend=place)
    fill(dead, steps, hash_it=hash_it)
    let_go(dead)
    home.die(place)
    assert home.count() == 2


def _map(home: Home, number: int) -> Arena:
    fd = home.open(number)
    arena = Arena(fd)
    os.close(fd)
    return arena


@pytest.mark.parametrize("hash_it", [True, False])
def test_what_a_dead_agent_held_is_offered_as_if_it_had_been_held_all_along(
    *, home: Home, hash_it: bool
) -> None:
    """Versions, bytes, lengths, also of slots never hashed; the same memory; at last nothing."""
    _leave(home, hash_it=hash_it)
    arenas = _arenas(home)
    assert arenas.take_over() == []
    assert arenas.held.usable([0, 1], 2)[0] == Version(1, 6)
    for rank in (0, 1):
        found = arenas.held.find(rank, Version(1, 6))
        assert found is not None
        assert bytes(found[1].image) == bytes([6]) * len(found[1].image)
        assert list(found[1].lengths) == [6]
        assert grant(arenas, rank, layout(rank)) is found[0]
    assert arenas.held.drop_damaged(Version(1, 6)) == []
    arenas.resume_from(Version(1, 6))
    assert arenas.held.versions(0) == {Version(1, 6)}
    arenas.close()
    assert home.count() == 0


def test_what_was_being_written_is_emptied(home: Home) -> None:
    """Half a step is none, and its slot is free again; an arena with nothing else is freed."""
    _leave(home)
    arena = _map(home, 0)
    kept = arena.table.rank
    slot = next(slot for slot in arena.slots if slot.state is SlotState.EMPTY)
    slot.begin_write(Version(1, 7))
    slot.image[:100] = bytes(100)
    arena.close()
    arena = _map(home, 1)
    for slot in arena.slots:
        if slot.state is SlotState.VALID:
            slot.words[SlotWord.STATE] = SlotState.WRITING
    arena.close()
    arenas = _arenas(home)
    assert arenas.take_over() == []
    assert (arenas.held.ranks, arenas.held.versions(kept)) == ([kept], {Version(1, 6)})
    assert home.count() == 1
    arenas.close()


@pytest.fixture
def mapped(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """Start a trainer that maps an arena and outlives the agent that made it."""
    _leave(home, steps=(6,))
    code = "import mmap,os,sys; m=mmap.mmap(int(sys.argv[1]),0); os.close(int(sys.argv[1]));" \
           "print(flush=True); input()"  # fmt: skip
    fd = home.open(0)
    trainer = subprocess.Popen(
        [sys.executable, "-c", code, str(fd)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd],
    )  # fmt: skip
    os.close(fd)
    assert trainer.stdout is not None
    trainer.stdout.readline()
    with trainer:
        yield trainer
        trainer.kill()


def test_memory_that_a_dying_trainer_maps_is_waited_for(
    home: Home, mapped: subprocess.Popen[bytes]
) -> None:
    """It could still write; that a runner holds it too does not count."""
    threading.Timer(0.3, mapped.kill).start()
    arenas = _arenas(home)
    assert arenas.take_over() == []
    assert arenas.held.ranks == [0, 1]
    assert mapped.wait(5) == -signal.SIGKILL
    arenas.close()


def test_memory_that_a_trainer_goes_on_mapping_is_given_up(
    home: Home, mapped: subprocess.Popen[bytes]
) -> None:
    """Once the patience is at its end; the trainer keeps it, and nobody else does."""
    place = home.place()
    (taken,), (note,) = place.take_over(patience_s=0.1)
    assert mapped.poll() is None
    assert note.endswith("another process still has it mapped")
    taken.close()
    assert home.count() == 1
    place.close()
