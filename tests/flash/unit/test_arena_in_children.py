"""Memory that processes share: a child never pins an arena."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.flash_world import Keeping

_TRAINER = """
import os, signal, sys
import torch
from holdfast.flash.memory.arena import Arena
from holdfast.flash.checkpointer import Checkpointer

if sys.argv[1] == "pins":
    Arena.keep_from_children = lambda self: None
flash = Checkpointer(None, model=torch.nn.Linear(300, 300))
flash.load()
flash.save(1, durable=False)
child = os.fork()
if child:
    print(child, flush=True)
signal.pause()
"""


def _arenas_of(pid: int | str) -> set[str]:
    """Return the inodes of all arenas that a process has mapped or open."""
    found = set[str]()
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        found |= {line.split()[4] for line in maps if "memfd:holdfast-arena" in line}
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "memfd:holdfast-arena" in str(fd.readlink()):
                    found.add(str(fd.stat().st_ino))
    return found


@contextlib.contextmanager
def _orphan(folder: Path, how: str) -> Iterator[tuple[int, set[str]]]:
    """A trainer's forked child that outlives trainer and agent; with the arenas there were."""
    with Keeping(folder) as keeping:
        environment = {**os.environ, "HOLDFAST_ARENA": keeping.path}
        trainer = subprocess.Popen(
            [sys.executable, "-c", _TRAINER, how], stdout=subprocess.PIPE, env=environment
        )
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        try:
            arenas = _arenas_of(trainer.pid)
            trainer.kill()
            trainer.wait()
            keeping.kill()
            yield child, arenas
        finally:
            trainer.stdout.close()
            os.kill(child, signal.SIGKILL)


@pytest.mark.train
@pytest.mark.parametrize("how", ["kept from children", "pins"])
def test_a_child_that_outlives_trainer_and_agent_pins_no_arena(tmp_path: Path, how: str) -> None:
    """Neither mapped nor open in it or in any process: the memory is free.

    Where the mapping is not kept from children, it is found in the child.
    """
    with _orphan(tmp_path, how) as (child, arenas):
        assert len(arenas) == 1
        assert Path(f"/proc/{child}").exists()
        holders = [
            path.name
            for path in Path("/proc").iterdir()
            if path.name.isdecimal() and arenas & _arenas_of(path.name)
        ]
        assert holders == ([str(child)] if how == "pins" else [])
