"""Takeover of a dead agent's arenas, wherever they outlived it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from checkpoints.filled_arenas import PLENTY, fill, layout, let_go
from holdfast.flash.memory.fdstore_backend import FdStoreBackend
from holdfast.flash.memory.file_backend import FileBackend
from holdfast.flash.memory.recovery import ArenaBackend
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast_cli.runner.fd_store import FdStore, close_all

_MOST_READ = 10_000


class Home(Protocol):
    """The place of one node's arenas, as a test sees it."""

    def place(self) -> ArenaBackend:
        """Return it, as the next agent has it."""

    def die(self, place: ArenaBackend) -> None:
        """Close what a SIGKILL of its agent closes."""

    def is_empty(self) -> bool:
        """Return whether the home holds nothing."""


class Files:
    """A directory in memory; on a disk the tests would wait for it."""

    def __init__(self, folder: Path) -> None:
        """Take the directory."""
        self._folder = folder

    def place(self) -> ArenaBackend:
        """Lock it."""
        return FileBackend(str(self._folder), "job")

    def die(self, place: ArenaBackend) -> None:
        """The lock goes."""
        assert isinstance(place, FileBackend)
        os.close(place._lock)

    def is_empty(self) -> bool:
        """No file, not even the lock."""
        return not list(self._folder.iterdir())


class Runner:
    """A runner that holds descriptors."""

    def __init__(self, shelf: FdStore) -> None:
        """Take what it holds."""
        self._shelf = shelf

    def place(self) -> ArenaBackend:
        """Connect."""
        return FdStoreBackend(self._shelf.connect().detach(), "job")

    def die(self, place: ArenaBackend) -> None:
        """The connection goes, and the runner sees it."""
        assert isinstance(place, FdStoreBackend)
        assert place._socket is not None
        place._socket.close()
        self._shelf.disconnect()

    def is_empty(self) -> bool:
        """No descriptor, once it has heard what was freed."""
        self._shelf.take_in(_MOST_READ)
        return self._shelf.count == 0


@pytest.fixture(params=["files", "runner"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    """Each place that there is."""
    if request.param == "files":
        folder = Path("/dev", "shm") / f"holdfast-test-{tmp_path.name}-{os.getpid()}"
        folder.mkdir()
        yield Files(folder)
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
    else:
        shelf = FdStore(0, close_all, lambda: True)
        yield Runner(shelf)
        shelf.disconnect()
        shelf.clear()


@pytest.mark.parametrize("hash_it", [True, False])
def test_what_a_dead_agent_held_is_offered_as_if_it_had_been_held_all_along(
    *, home: Home, hash_it: bool
) -> None:
    """Versions, bytes, lengths, also of slots never hashed; the same memory; at last nothing."""
    place = home.place()
    dead = ArenaStore(lambda: PLENTY, backend=place)
    fill(dead, (5, 6), hash_it=hash_it)
    let_go(dead)
    home.die(place)
    assert not home.is_empty()
    arenas = ArenaStore(lambda: PLENTY, backend=home.place())
    assert arenas.take_over() == []
    assert arenas.held.usable([0, 1], 2)[0] == Version(1, 6)
    for rank in (0, 1):
        found = arenas.held.find(rank, Version(1, 6))
        assert found is not None
        assert bytes(found[1].image) == bytes([6]) * len(found[1].image)
        assert list(found[1].lengths) == [6]
        assert arenas.grant(rank, layout(rank)) is found[0]
    assert arenas.held.drop_damaged(Version(1, 6)) == []
    arenas.resume_from(Version(1, 6))
    assert arenas.held.versions(0) == {Version(1, 6)}
    arenas.close()
    assert home.is_empty()
