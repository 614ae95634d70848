"""Both ranks are killed while their copies run: what memory gives is the step before, whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from checkpoints.flash_world import Worlds
from checkpoints.led_nodes import Script, alone, flush_to_storage, grant_of, running
from holdfast.flash.memory.arena import SlotWord
from holdfast.flash.memory.slots import SlotState, Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.coordinated_commit import CoordinatedCommit
from holdfast.flash.server.protocol import listen
from holdfast.flash.server.service import ServerState, Service

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
WAIT_SECONDS = 60.0


def _kill_mid_copy(worlds: Worlds, keeper: ArenaStore, **world: Any) -> Version:
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
    running.join(WAIT_SECONDS)
    assert answers == [[{}, {}]]
    written = [slot.version for slot in _slots(keeper) if slot.state is SlotState.WRITING]
    common = keeper.held.versions(0) & keeper.held.versions(1)
    assert len(written) == 2
    assert max(common) < max(written)
    return max(common)


def _slots(keeper: ArenaStore) -> list[Any]:
    return [
        slot
        for arenas in list(keeper.held.by_rank.values())
        for held in arenas
        for slot in held.arena.slots
    ]


def _stopped_writers(keeper: ArenaStore) -> set[int]:
    """Return the two ranks once both are a few steps on, and stopped in the middle of a copy."""
    deadline = time.monotonic() + WAIT_SECONDS
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


def _writers(keeper: ArenaStore) -> set[int]:
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
    arena, keeper = str(tmp_path / "keeper"), ArenaStore()
    with alone(tmp_path / "keeper", keeper):
        newest = _kill_mid_copy(worlds, keeper, root=None, arena=arena, overlap=overlap)
        answers = worlds.run(
            job="large", kind="fsdp", world=2, round=2, load=True, root=None, arena=arena
        )
    assert answers == [{"start": newest.step, "seen": [float(newest.step)]}] * 2


def test_killed_mid_copy_a_breakpoint_save_writes_the_step_before(
    worlds: Worlds, tmp_path: Path
) -> None:
    """At the master's word dead ranks' memory goes to storage: the newest that both have, whole."""
    arena, root, lead = str(tmp_path / "keeper"), str(tmp_path / "ck"), Script()
    keeper = ArenaStore(led=True)
    node = ServerState(keeper)
    commit = CoordinatedCommit(node, lead)
    service = Service(node, commit, commit.restore, listen(arena))
    with running(service):
        newest = _kill_mid_copy(worlds, keeper, root=root, arena=arena)
        service.post(lambda: commit.flush_to_storage(flush_to_storage(newest, "h1")))
        parts = lead.hears("written")
        assert (parts.version, parts.ranks, parts.error) == (newest, (0, 1), "")
        service.post(lambda: commit.grant(grant_of(parts, "h1e1c1")))
        assert lead.hears("committed").error == ""
    answers = worlds.run(job="large", kind="fsdp", world=2, round=2, load=True, root=root)
    assert answers == [{"start": newest.step, "seen": [float(newest.step)]}] * 2
