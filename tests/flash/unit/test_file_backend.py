"""Arenas in files: what the next agent takes over, what it gives up, and what it refuses."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.filled_arenas import PLENTY, fill, grant, layout, let_go, memory_folder
from holdfast.flash.memory.arena import PAGE, Arena, ArenaWord, SlotWord
from holdfast.flash.memory.file_backend import LOCK, FileBackend
from holdfast.flash.memory.recovery import BackendError
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore, ArenaStoreError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory."""
    with memory_folder(tmp_path.name) as path:
        yield path


def _arenas(folder: Path, job: str = "job") -> ArenaStore:
    return ArenaStore(lambda: PLENTY, backend=FileBackend(str(folder), job))


def _left(folder: Path, *, steps: tuple[int, ...] = (5, 6)) -> list[Path]:
    """Leave what a killed agent with two ranks leaves; return the arenas by rank."""
    arenas = _arenas(folder)
    fill(arenas, steps)
    paths = [Path(arenas.held.by_rank[rank][0].path) for rank in (0, 1)]
    assert isinstance(arenas._backend, FileBackend)
    let_go(arenas)
    os.close(arenas._backend._lock)
    return paths


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_never_restored(folder: Path, seed: int) -> None:
    """Anywhere in a file: nothing that counts is touched, or the slot or file is given up."""
    rng = random.Random(seed)
    path = _left(folder)[0]
    whole = path.read_bytes()
    at, bit = rng.randrange(len(whole) * 8) // 8, rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 1 << bit]))
    arenas = _arenas(folder)
    arenas.take_over()
    _holds_only_what_was_saved(arenas, f"seed {seed}: byte {at}, bit {bit}")
    arenas.close()


@pytest.mark.parametrize(
    "word",
    [SlotWord.MAGIC, SlotWord.LINEAGE, SlotWord.STEP, SlotWord.RANK, SlotWord.WORLD,
     SlotWord.LAYOUT, SlotWord.BYTES_USED, SlotWord.SEQUENCE, SlotWord.CHECK],
)  # fmt: skip
def test_a_damaged_header_empties_its_slot(folder: Path, word: SlotWord) -> None:
    """A step that would pass for another one is the worst that a bit can do."""
    path = _left(folder, steps=(6,))[0]
    fd = os.open(path, os.O_RDWR)
    arena = Arena(fd)
    slot = next(slot for slot in arena.slots if slot.state is SlotState.VALID)
    slot.words[word] ^= 2
    arena.close()
    os.close(fd)
    arenas = _arenas(folder)
    (note,) = arenas.take_over()
    assert "header" in note
    assert (arenas.held.versions(0), arenas.held.versions(1)) == (set(), {Version(1, 6)})
    arenas.close()


def _holds_only_what_was_saved(arenas: ArenaStore, where: str) -> None:
    for rank in (0, 1):
        for version in arenas.held.versions(rank):
            place = arenas.held.find(rank, version)
            assert place is not None
            spans = place[0].arena.table.spans(tuple(place[1].lengths))
            for begin, length in spans:
                got = bytes(place[1].image[begin : begin + length])
                assert got == bytes([version.step]) * length, where
            assert version.step in (5, 6), where
    assert Version(1, 6) in arenas.held.versions(1), f"{where}: the other rank's file is whole"


@pytest.mark.parametrize("size", [0, 100, PAGE, 5 * PAGE])
def test_a_truncated_file_is_removed(folder: Path, size: int) -> None:
    """It would kill its reader with SIGBUS; the note names the file, unless it was never one."""
    path = _left(folder)[0]
    os.truncate(path, size)
    arenas = _arenas(folder)
    notes = arenas.take_over()
    assert len(notes) == (size > 0)
    assert all(str(path) in note for note in notes)
    assert not path.exists()
    assert arenas.held.ranks == [1]
    arenas.close()


def test_a_file_with_holes_gets_its_room_back_or_goes(folder: Path) -> None:
    """Writing into a hole of a full volume would be a SIGBUS: here there is room."""
    path = _left(folder, steps=(6,))[0]
    end = path.stat().st_size
    subprocess.run(
        ["fallocate", "-p", "-o", str(end - 2 * PAGE), "-l", str(PAGE), path], check=True
    )
    before = path.stat().st_blocks
    arenas = _arenas(folder)
    arenas.take_over()
    assert path.stat().st_blocks > before
    arenas.close()


def test_foreign_jobs_and_older_formats_are_swept_and_other_files_are_not(folder: Path) -> None:
    """Nobody will ever ask for them, and they are memory."""
    first, second = _left(folder)
    with second.open("r+b") as file:
        file.seek(8 * ArenaWord.FORMAT)
        file.write((1).to_bytes(8, "little"))
    (folder / "notes.txt").write_text("a person's")
    (folder / "arena-named").write_bytes(b"")
    (folder / "arena-allocated").write_bytes(bytes(1 << 20))
    (folder / "arena-link").symlink_to(folder / "notes.txt")
    arenas = _arenas(folder, "another")
    notes = arenas.take_over()
    assert sorted(note.split()[0] for note in notes) == sorted(
        str(path) for path in (first, second, folder / "arena-link")
    ), "what was only half made has held nothing: it goes without a word"
    assert any("job 'job'" in note for note in notes)
    assert _files(folder) == [LOCK, "notes.txt"]
    arenas.close()
    assert _files(folder) == ["notes.txt"]


def test_a_second_agent_is_refused_and_the_first_is_named(folder: Path) -> None:
    """Both would write to the same slots; once the first has ended there is no trace of it."""
    first = FileBackend(str(folder), "job")
    with pytest.raises(BackendError, match=rf"in use by another agent, process {os.getpid()}"):
        FileBackend(str(folder), "job")
    first.close()
    FileBackend(str(folder), "job").close()
    assert _files(folder) == []


def test_a_volume_that_is_full_is_told_with_the_numbers(folder: Path) -> None:
    """Before anything is mapped; nothing stays behind, and a smaller arena still fits."""
    arenas = _arenas(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(
            ArenaStoreError, match=r"rank 0: an arena of 7 MiB does not fit into .* MiB"
        ):
            grant(arenas, 0, layout(room=2 * 2**20))
        assert _files(folder) == [LOCK]
        grant(arenas, 0, layout())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    arenas.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_small_or_read_only_file_system_is_refused_and_never_a_sigbus(tmp_path: Path) -> None:
    """As a kubelet mounts it: with a size, which is what the error tells; then read-only."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", place], check=True)
    try:
        arenas = _arenas(place)
        grant(arenas, 0, layout())
        with pytest.raises(ArenaStoreError, match=r"has 1 MiB left \(No space left on device\)"):
            grant(arenas, 1, layout(1, room=2**20))
        arenas.close()
        assert _files(place) == []
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        with pytest.raises(BackendError, match="Read-only file system"):
            FileBackend(str(place), "job")
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    """With what would be right."""
    with pytest.raises(BackendError, match=r"none: No such file.* Mount a memory volume"):
        FileBackend(str(tmp_path / "none"), "job")


def test_a_job_uid_that_does_not_fit_is_refused(folder: Path) -> None:
    """A cut one could be another job's."""
    volume = FileBackend(str(folder), "j" * 300)
    arenas = ArenaStore(lambda: PLENTY, backend=volume)
    with pytest.raises(ArenaStoreError, match=r"rank 0: .* 300 bytes"):
        grant(arenas, 0, layout())
    assert _files(folder) == [LOCK]
    arenas.close()
