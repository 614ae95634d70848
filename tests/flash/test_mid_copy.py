"""Both ranks are killed while their copies run: what memory gives is the step before, whole."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flash_world import Worlds
from holdfast.flash.decide.slots import SlotState, Version
from holdfast.flash.header import SlotWord
from holdfast.flash.keeper import Keeper
from holdfast.flash.led import LedService
from holdfast.flash.persisting import Grant
from holdfast.flash.service import Service
from holdfast.flash.sockets import listen
from lone_peers import Nobody

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """One process with torch for all tests here."""
    with Worlds() as started:
        yield started


class Lead:
    """A master whose words the test speaks."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self.told: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.job, self.peers = "job", Nobody()

    def world(self, round_number: int) -> str:
        """Name the world of a round."""
        return f"w{round_number}"

    def attempt(self, round_number: int) -> str:
        """Name a world's attempts."""
        return f"w{round_number}"

    def __getattr__(self, name: str) -> Any:
        if name not in ("held", "written", "committed", "asks", "checked"):
            raise AttributeError(name)
        return lambda *words, **_: self.told.put((name, words))

    def hears(self, name: str) -> Any:
        """Return the next word of a kind."""
        while True:
            kind, words = self.told.get(timeout=WAIT_S)
            if kind == name:
                return words


@contextmanager
def _runs(service: Service) -> Iterator[None]:
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield
    finally:
        service.stop()
        thread.join()
        service.keeper.close()


def _kill_mid_copy(worlds: Worlds, keeper: Keeper, **world: Any) -> Version:
    """Run two ranks, kill both while both write; return the newest version that both have."""
    answers: list[Any] = []
    running = threading.Thread(
        target=lambda: answers.append(
            worlds.run(job="large", kind="fsdp", world=2, round=1, load=False, **world)
        )
    )
    running.start()
    pids = _stopped_writers(keeper)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    running.join(WAIT_S)
    assert answers == [[{}, {}]]
    written = [slot.version for slot in _slots(keeper) if slot.state is SlotState.WRITING]
    common = keeper.versions(0) & keeper.versions(1)
    assert len(written) == 2
    assert max(common) < max(written)
    return max(common)


def _slots(keeper: Keeper) -> list[Any]:
    return [
        slot
        for arenas in list(keeper._held.values())
        for held in arenas
        for slot in held.arena.slots
    ]


def _stopped_writers(keeper: Keeper) -> set[int]:
    """Return the two ranks once both are a few steps on, and stopped in the middle of a copy."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline
        writers = _writers(keeper)
        if len(writers) < 2:
            os.sched_yield()
            continue
        for pid in writers:
            os.kill(pid, signal.SIGSTOP)
        while not all(map(_is_stopped, writers)):
            assert time.monotonic() < deadline
        if _writers(keeper) == writers:
            return writers
        for pid in writers:  # one was done before it was stopped
            os.kill(pid, signal.SIGCONT)


def _writers(keeper: Keeper) -> set[int]:
    return {
        slot.words[SlotWord.PID]
        for slot in _slots(keeper)
        if slot.state is SlotState.WRITING and slot.version.step > 3
    }


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("overlap", [False, True], ids=["at once", "overlapped"])
def test_killed_mid_copy_memory_gives_the_step_before(
    worlds: Worlds, tmp_path: Path, *, overlap: bool
) -> None:
    """Two FSDP2 ranks of 64 MiB: no number of the step that was being copied is loaded."""
    arena = str(tmp_path / "keeper")
    keeper = Keeper()
    with _runs(Service(keeper, listen(arena))):
        newest = _kill_mid_copy(worlds, keeper, root=None, arena=arena, overlap=overlap)
        answers = worlds.run(
            job="large", kind="fsdp", world=2, round=2, load=True, root=None, arena=arena
        )
    assert answers == [{"start": newest.step, "seen": [float(newest.step)]}] * 2


def test_killed_mid_copy_a_breakpoint_save_writes_the_step_before(
    worlds: Worlds, tmp_path: Path
) -> None:
    """At the master's word dead ranks' memory goes to storage: the newest that both have, whole."""
    arena, root, lead = str(tmp_path / "keeper"), str(tmp_path / "ck"), Lead()
    keeper = Keeper(led=True)
    service = LedService(keeper, listen(arena), lead)
    with _runs(service):
        newest = _kill_mid_copy(worlds, keeper, root=root, arena=arena)
        service.post(lambda: service.save_held(newest, "h1"))
        (parts,) = lead.hears("written")
        assert (parts.version, parts.ranks, parts.error) == (newest, (0, 1), "")
        grant = Grant(version=newest, world=2, root=root, attempt="h1", own="h1e1c1")
        service.post(lambda: service.grant(grant))
        assert lead.hears("committed")[1] == ""
    answers = worlds.run(job="large", kind="fsdp", world=2, round=2, load=True, root=root)
    assert answers == [{"start": newest.step, "seen": [float(newest.step)]}] * 2
