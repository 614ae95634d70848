"""A file's pages: large ones where the kernel has them, ordinary ones where it does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.filled_arenas import grant, layout
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.mmap import LARGE, Mapping
from holdfast.flash.server.arena_store import ArenaStore

SIZE = 3 * LARGE + 4096
PATTERN = bytes(range(256)) * 16
_PR_SET_THP_DISABLE = 41


@pytest.fixture
def file() -> Iterator[int]:
    """Memory of three large pages and a small one, of which nothing is there yet."""
    fd = os.memfd_create("mapping")
    os.ftruncate(fd, SIZE)
    yield fd
    os.close(fd)


def large_bytes(mapping: Mapping | Arena) -> int:
    """Return how much of a mapping this process has in large pages."""
    smaps = Path("/proc/self/smaps").read_text()
    _, _, mine = smaps.partition(f"\n{mapping.address:x}-")
    found = re.search(r"^ShmemPmdMapped:\s+(\d+) kB$", mine, re.MULTILINE)
    assert found is not None, mine[:2000]
    return 1024 * int(found[1])


@pytest.fixture
def enlarged(file: int) -> Iterator[Mapping]:
    """That memory in large pages."""
    mapping = Mapping(file)
    mapping.enlarge(threads=2)
    if not large_bytes(mapping):
        mapping.close()
        pytest.skip("this kernel gives no large pages on request (MADV_COLLAPSE, Linux 6.1)")
    yield mapping
    mapping.close()


def test_all_whole_large_pages_are_large(enlarged: Mapping) -> None:
    """Also under the system's setting `shmem_enabled = never`; the rest is faulted in as it is."""
    enlarged.fault_in(write=True, threads=2)
    assert large_bytes(enlarged) == 3 * LARGE
    assert not any(enlarged.memory)


def test_a_later_mapping_has_large_pages_without_asking(file: int, enlarged: Mapping) -> None:
    """A new mapping of a file with large pages is faulted in 2 MiB at a time."""
    enlarged.memory[LARGE : LARGE + len(PATTERN)] = PATTERN
    later = Mapping(file)
    assert later.address % LARGE == 0
    later.fault_in(write=False, threads=1)
    assert large_bytes(later) == 3 * LARGE
    assert later.memory[LARGE : LARGE + len(PATTERN)] == PATTERN
    later.close()


@pytest.mark.usefixtures("enlarged")
def test_an_arena_is_made_of_large_pages() -> None:
    """A trainer is given one whose slots it maps in a moment."""
    arenas = ArenaStore()
    try:
        arena = grant(arenas, 0, layout(world=1, room=2 * LARGE)).arena
        assert large_bytes(arena) == len(arena.memory) // LARGE * LARGE >= 6 * LARGE
    finally:
        arenas.close()


def test_what_was_written_before_stays(file: int) -> None:
    """Pages that hold something are moved, not emptied."""
    mapping = Mapping(file)
    at = range(0, SIZE - len(PATTERN), 64 * 1024)
    for begin in at:
        mapping.memory[begin : begin + len(PATTERN)] = PATTERN
    mapping.enlarge(threads=1)
    assert all(mapping.memory[begin : begin + len(PATTERN)] == PATTERN for begin in at)
    mapping.close()


def _run(script: str) -> str:
    """Run a script in a process of its own; return what it prints, and nothing else may be said."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_without_large_pages_the_memory_is_there_all_the_same() -> None:
    """A process that may have none gets ordinary pages, all of them faulted in, and no error."""
    script = f"""
import ctypes, os
assert ctypes.CDLL(None).prctl({_PR_SET_THP_DISABLE}, 1, 0, 0, 0) == 0
from holdfast.flash.memory.mmap import Mapping
fd = os.memfd_create("mapping")
os.ftruncate(fd, {SIZE})
mapping = Mapping(fd)
mapping.enlarge(threads=1)
mapping.fault_in(write=True, threads=1)
print(os.fstat(fd).st_blocks * 512)
"""
    assert _run(script) == f"{SIZE}\n"


_FORKED = """
import gc, mmap, os, sys

taken = []

def take():
    # The kernel puts a new mapping into the uppermost hole that it fits in: the arena's.
    taken.extend(mmap.mmap(-1, 4096 * 256) for _ in range(64))
    for block in taken:
        block[:] = b"x" * len(block)

if {early}:
    os.register_at_fork(after_in_child=take)
from holdfast.flash.memory.mmap import Mapping

fd = os.memfd_create("mapping")
os.ftruncate(fd, {size})
mapping = Mapping(fd)
mapping.keep_from_children()
mapping.memory[:4] = b"mine"
pid = os.fork()
if not pid:
    if not {early}:
        take()
    os.write(1, open("/proc/self/maps", "rb").read() if {show} else b"")
    {end}
    gc.collect()
    assert all(block[:] == b"x" * len(block) for block in taken)
    if os.fork():
        status = os.wait()[1]
        assert status == 0, status
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert mapping.memory[:4] == b"mine"
mapping.close()
print("done")
"""


@pytest.mark.parametrize("end", ["del mapping", "mapping.close()", "pass"])
@pytest.mark.parametrize("early", [False, True])
def test_a_forked_child_keeps_what_lies_where_the_mapping_was(end: str, *, early: bool) -> None:
    """Its copy of the object unmaps nothing of the child's own, however early that came there."""
    script = _FORKED.format(size=32 * LARGE, end=end, early=early, show=False)
    assert _run(script) == "done\n"


def test_a_forked_child_does_not_pin_the_mapping() -> None:
    """A data loader's child that outlives the trainer holds no memory of the arena."""
    script = _FORKED.format(size=32 * LARGE, end="pass", early=False, show=True)
    said = _run(script)
    assert said.endswith("done\n")
    assert "00400000" in said or "[heap]" in said  # the child's map was printed
    assert "memfd:mapping" not in said


_ONE_CLOSED = """
import os
from holdfast.flash.memory.mmap import Mapping

def mapped():
    fd = os.memfd_create("mapping")
    os.ftruncate(fd, 4096)
    found = Mapping(fd)
    found.keep_from_children()
    return found

closed, kept = mapped(), mapped()
closed.close()
pid = os.fork()
if not pid:
    areas = [line.split()[0].split("-") for line in open("/proc/self/maps")]
    there = any(int(begin, 16) <= kept.address < int(end, 16) for begin, end in areas)
    print("reserved" if there else "a hole", flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_mapping_that_was_closed_before_takes_no_other_ones_place() -> None:
    """Its object may live on: the child looks at those that are mapped, and says nothing."""
    assert _run(_ONE_CLOSED) == "reserved\n"
