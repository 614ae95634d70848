"""What the next agent takes over from a dead one, wherever its arenas outlived it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from filled_arenas import PLENTY, fill, layout, let_go
from holdfast.flash.decide.slots import Version
from holdfast.flash.inheritance import Place
from holdfast.flash.keeper import Keeper
from holdfast.flash.stash import Stash
from holdfast.flash.volume import Volume
from holdfast_cli.runner.shelf import Shelf, close_all

_MOST_READ = 10_000


class Home(Protocol):
    """Where the arenas of one node lie, as a test sees it."""

    def place(self) -> Place:
        """Return it, as the next agent has it."""

    def die(self, place: Place) -> None:
        """Close what a SIGKILL of its agent closes."""

    def is_empty(self) -> bool:
        """Whether nothing is left in it."""


class Files:
    """A directory in memory; on a disk the tests would wait for it."""

    def __init__(self, folder: Path) -> None:
        """Take the directory."""
        self._folder = folder

    def place(self) -> Place:
        """Lock it."""
        return Volume(str(self._folder), "job")

    def die(self, place: Place) -> None:
        """The lock goes."""
        assert isinstance(place, Volume)
        os.close(place._lock)

    def is_empty(self) -> bool:
        """No file, not even the lock."""
        return not list(self._folder.iterdir())


class Runner:
    """A runner that holds descriptors."""

    def __init__(self, shelf: Shelf) -> None:
        """Take what it holds."""
        self._shelf = shelf

    def place(self) -> Place:
        """Connect."""
        return Stash(self._shelf.connect().detach(), "job")

    def die(self, place: Place) -> None:
        """The connection goes, and the runner sees it."""
        assert isinstance(place, Stash)
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
        shelf = Shelf(0, close_all, lambda: True)
        yield Runner(shelf)
        shelf.disconnect()
        shelf.clear()


@pytest.mark.parametrize("hash_it", [True, False])
def test_what_a_dead_agent_held_is_offered_as_if_it_had_been_held_all_along(
    *, home: Home, hash_it: bool
) -> None:
    """Versions, bytes, lengths, also of slots never hashed; the same memory; at last nothing."""
    place = home.place()
    dead = Keeper(lambda: PLENTY, volume=place)
    fill(dead, (5, 6), hash_it=hash_it)
    let_go(dead)
    home.die(place)
    assert not home.is_empty()
    keeper = Keeper(lambda: PLENTY, volume=home.place())
    assert keeper.take_over() == []
    assert keeper.offer.usable([0, 1], 2)[0] == Version(1, 6)
    for rank in (0, 1):
        found = keeper.find(rank, Version(1, 6))
        assert found is not None
        assert bytes(found[1].image) == bytes([6]) * len(found[1].image)
        assert list(found[1].lengths) == [6]
        assert keeper.grant(rank, layout(rank)) is found[0]
    assert keeper.offer.drop_damaged(Version(1, 6)) == []
    keeper.resume_from(Version(1, 6))
    assert keeper.versions(0) == {Version(1, 6)}
    keeper.close()
    assert home.is_empty()
