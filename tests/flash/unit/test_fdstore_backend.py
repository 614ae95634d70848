"""Arenas that the runner holds too: what the next agent takes over, gives up, and does without."""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.filled_arenas import PLENTY, fill, grant, layout, let_go
from holdfast.flash.memory.arena import Arena, ArenaWord, geometry_of
from holdfast.flash.memory.fdstore_backend import FdStoreBackend
from holdfast.flash.memory.recovery import BackendError
from holdfast.flash.memory.shard_table import decode
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore, ArenaStoreError
from holdfast_agent.checkpoint.arenas import place_of
from holdfast_cli.runner.fd_store import FdStore, close_all
from holdfast_wire import fd_messages

_MOST_READ = 10_000


@pytest.fixture
def shelf() -> Iterator[FdStore]:
    """Make a runner's shelf. Check at the end that no descriptor of an arena is left open."""
    before = _open_arenas()
    made = FdStore(0, close_all, lambda: True)
    yield made
    made.disconnect()
    made.clear()
    assert _open_arenas() == before


def _open_arenas() -> list[str]:
    """Return the descriptors of arenas that this process has."""
    links = (entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    return [one.name for one in links if f"memfd:{fd_messages.ARENA}" in str(one.readlink())]


def _stash(shelf: FdStore, job: str = "job") -> FdStoreBackend:
    return FdStoreBackend(shelf.connect().detach(), job)


def _arenas(shelf: FdStore, job: str = "job") -> ArenaStore:
    return ArenaStore(lambda: PLENTY, backend=_stash(shelf, job))


def _die(arenas: ArenaStore, shelf: FdStore) -> None:
    """Close what a SIGKILL closes, and have the runner see it."""
    stash = arenas._backend
    assert isinstance(stash, FdStoreBackend)
    let_go(arenas)
    assert stash._socket is not None
    stash._socket.close()
    for fd in stash._left.values():
        os.close(fd)
    shelf.disconnect()


def _leave(shelf: FdStore, *, steps: tuple[int, ...] = (5, 6)) -> None:
    arenas = _arenas(shelf)
    fill(arenas, steps)
    _die(arenas, shelf)
    assert shelf.count == 2


def _map(shelf: FdStore) -> Arena:
    """Map one of the arenas that are held, as nobody should."""
    fd = os.open(f"/proc/self/fd/{next(iter(shelf._items.values()))}", os.O_RDWR)
    arena = Arena(fd)
    os.close(fd)
    return arena


def test_a_successor_that_dies_before_it_takes_over_loses_nothing(shelf: FdStore) -> None:
    """Handing over is no giving away."""
    _leave(shelf)
    _die(_arenas(shelf), shelf)
    arenas = _arenas(shelf)
    assert arenas.take_over() == []
    assert arenas.held.common([0, 1]) == {Version(1, 6)}
    arenas.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_is_never_restored(shelf: FdStore, seed: int) -> None:
    """Anywhere in an image: the slot is given up, with its step in the note."""
    rng = random.Random(seed)
    _leave(shelf, steps=(6,))
    arena = _map(shelf)
    slot = next(slot for slot in arena.slots if slot.state is SlotState.VALID)
    begin, length = rng.choice([span for span in arena.table.spans((6,)) if span[1]])
    slot.image[begin + rng.randrange(length)] ^= 1 << rng.randrange(8)
    rank = arena.table.rank
    arena.close()
    arenas = _arenas(shelf)
    (note,) = arenas.take_over()
    assert "step 6, is emptied: its bytes do not have their hashes" in note
    assert arenas.held.ranks == [1 - rank]
    arenas.close()


def test_foreign_jobs_and_older_formats_are_given_up(shelf: FdStore) -> None:
    """Each with a note, and freed at the runner: nobody will ever ask for it."""
    _leave(shelf)
    arena = _map(shelf)
    rank = arena.table.rank
    arena.memory[8 * ArenaWord.FORMAT] = 1
    arena.close()
    stranger = _arenas(shelf, "another")
    fill(stranger, (6,))
    _die(stranger, shelf)
    assert shelf.count == 4
    arenas = _arenas(shelf)
    notes = arenas.take_over()
    assert arenas.held.ranks == [1 - rank]
    assert sum("no arena of format" in note for note in notes) == 1
    assert sum("it is of job 'another', and this is 'job'" in note for note in notes) == 2
    shelf.take_in(_MOST_READ)
    assert shelf.count == 1
    arenas.close()


def test_memory_that_could_shrink_is_given_up(shelf: FdStore) -> None:
    """Its reader would be killed by SIGBUS."""
    stash = _stash(shelf)
    body = layout().table.encode()
    sealed, _ = stash.make(body, geometry_of(decode(body), len(body), 3, 4096))
    copy = os.memfd_create(fd_messages.ARENA, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(copy, os.pread(sealed, os.fstat(sealed).st_size, 0))
    assert stash._hand_over("copy", copy)
    os.close(sealed)
    os.close(copy)
    assert stash._socket is not None
    stash._socket.close()
    shelf.disconnect()
    _, notes = (after := _stash(shelf)).take_over()
    assert notes == ["copy was removed: its size is not sealed"]
    after.close()


def test_a_runner_that_reads_nothing_delays_nobody(
    shelf: FdStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An arena that the runner does not take stays with the agent. A warning says so once."""
    stash = _stash(shelf)
    body = layout().table.encode()
    geometry = geometry_of(decode(body), len(body), 1, 4096)
    names = list[str]()
    with caplog.at_level(logging.WARNING):
        while not names or names[-1]:
            fd, name = stash.make(body, geometry)
            os.close(fd)
            names.append(name)
            assert len(names) < _MOST_READ
        os.close(stash.make(body, geometry)[0])
        for name in names:
            stash.remove(name)
    assert len(caplog.records) == 1
    assert "lost with this agent" in caplog.text
    caplog.clear()
    while shelf.take_in(_MOST_READ) or stash._unsaid:
        stash._say_freed()
    shelf.take_in(_MOST_READ)
    assert shelf.count == 0
    fd, name = stash.make(body, geometry)
    os.close(fd)
    assert name
    stash.close()


def test_an_agent_whose_runner_is_gone_goes_on(shelf: FdStore) -> None:
    """As before there were runners that held anything."""
    arenas = _arenas(shelf)
    shelf.disconnect()
    fill(arenas, (5, 6))
    assert arenas.held.common([0, 1]) == {Version(1, 6)}
    arenas.close()


def test_what_is_no_runner_is_left_alone() -> None:
    """A wrapper may have closed the socket, and the number may be anything's by now."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stream, far = socket.socketpair()
    with one, other, stream, far, open(os.devnull) as file:  # noqa: PTH123
        other.send(b"hello")
        for fd in (one.fileno(), other.fileno(), stream.fileno(), file.fileno(), 9999):
            with pytest.raises(BackendError, match=f"descriptor {fd} "):
                FdStoreBackend(fd, "job")
            assert place_of("", "job", fd) is None
        file.read()
        other.send(b"it is open still")
    assert place_of("", "job", -1) is None


def test_memory_that_cannot_be_made_is_an_error_with_its_reason(
    shelf: FdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer is told, and the next try may succeed."""
    arenas = _arenas(shelf)

    def full(*_: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", full)
        with pytest.raises(ArenaStoreError, match=r"rank 0: an arena of .* Too many open files"):
            grant(arenas, 0, layout())
    grant(arenas, 0, layout())
    arenas.close()
