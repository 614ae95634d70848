"""The agent keeps what its ranks have saved in memory: through their deaths, not beyond its own."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agents.agent_process import AgentProcess, StartAgent, wait_gone
from checkpoints.lone_peers import nobody
from holdfast_agent.checkpoint.arenas import Arenas

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

Start = Callable[..., AgentProcess]

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
import holdfast
from holdfast.flash.schedule import Schedule

def say(*words):  # one write: lines of two ranks must not mix
    os.write(1, " ".join(map(str, (*words, ";\\n"))).encode())

dist.init_process_group("gloo")
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
folder, steps, killed_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = torch.nn.Linear(300, 200)
flash = holdfast.Checkpointer(folder, model=model, schedule=Schedule(storage_every=0))
start = flash.load()
value = float(model.weight.detach().double().mean()) if start else 0.0
say("start", dist.get_rank(), start, value, os.getpid())
for step in range(start + 1, steps + 1):
    time.sleep(0.005)
    dist.barrier()
    with torch.no_grad():
        model.weight.fill_(step)
    flash.step(step)
    say("step", dist.get_rank(), step)
    if first and step == killed_at and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
flash.close()
say("end", dist.get_rank())
"""


@pytest.fixture
def start(start_alone: StartAgent, tmp_path: Path) -> Start:
    """Start a standalone agent with two ranks; checkpoints go to tmp_path/checkpoints."""
    (tmp_path / "train.py").write_text(TRAIN)

    def begin(steps: int, killed_at: int = 0, *, forked: bool = True) -> AgentProcess:
        args = ("train.py", "checkpoints", str(steps), str(killed_at))
        return start_alone("--nproc-per-node=2", *args, forked=forked)

    return begin


def _said(agent: AgentProcess, word: str) -> list[list[str]]:
    lines = agent.output().replace(";", "").splitlines()
    return [line.split()[1:] for line in lines if line.startswith(f"{word} ")]


def _arenas(pids: list[int]) -> set[int]:
    """Return the inodes of the arenas that these processes hold open or have mapped."""
    found = set()
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if "holdfast-arena" in str(entry.readlink()):
                    found.add(entry.stat().st_ino)
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "holdfast-arena" in line:
                    found.add(int(line.split()[4]))
        except OSError:
            continue
    return found


def _held(agent: AgentProcess) -> set[int]:
    """Wait until the ranks have saved; return the arenas of the agent and its family."""
    agent.until(lambda: len(_said(agent, "step")) > 20)
    held = _arenas([agent.pid, *(process.pid for process in agent.family())])
    assert len(held) == 2, "an arena for each rank"
    return held


def test_a_killed_rank_comes_back_to_the_step_before_from_memory(
    start: Start, tmp_path: Path
) -> None:
    """Nothing was on storage, and both ranks go on from the newest step that both had."""
    agent = start(40, killed_at=20)
    assert agent.wait(120) == 0, agent.errors()
    begun = _said(agent, "start")[2:]
    steps = {int(words[1]) for words in begun}
    assert len(begun) == 2
    assert len(steps) == 1, begun
    assert 1 <= min(steps) <= 20, begun
    assert {float(words[2]) for words in begun} == {float(min(steps))}
    stored = {path.name for path in (tmp_path / "checkpoints").iterdir()} - {"owners"}
    # A success writes the newest step of memory.
    assert {"step_40"} <= stored <= {f"step_{min(steps)}", "step_40"}


ALONE = """
import os
import torch
import torch.distributed as dist
import holdfast

dist.init_process_group("gloo")
flash = holdfast.Checkpointer("checkpoints", model=torch.nn.Linear(300, 200))
if dist.get_rank() == 0:
    flash.save(1)
    while not any(name.startswith("step_1.tmp") for name in os.listdir("checkpoints")):
        pass
dist.barrier()
"""


def test_a_step_that_only_one_rank_saved_is_gone_when_the_job_has_ended(
    start: Start, tmp_path: Path
) -> None:
    """It is no checkpoint, nobody will ever make one of it, and no other world comes to sweep."""
    (tmp_path / "train.py").write_text(ALONE)
    agent = start(1)
    assert agent.wait(120) == 0, agent.errors()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_no_byte_is_left_when_the_job_has_ended(start: Start) -> None:
    """The arenas that ranks and agent held are nobody's afterwards."""
    agent = start(4000)
    held = _held(agent)
    agent.send(signal.SIGTERM)
    agent.wait(60)
    assert _arenas(psutil.pids()) & held == set()


def test_no_byte_is_left_when_the_agent_is_killed(start: Start, tmp_path: Path) -> None:
    """Its memory goes with it and its ranks; the next agent removes the socket."""
    agent = start(4000, forked=False)
    held, family = _held(agent), agent.family()
    agent.send(signal.SIGKILL)
    assert wait_gone(family, 5.0) == []
    assert _arenas(psutil.pids()) & held == set()
    assert list((tmp_path / "tmp").glob("holdfast_arena_*"))
    following = start(3, forked=False)
    assert following.wait(120) == 0, following.errors()
    assert list((tmp_path / "tmp").glob("holdfast_arena_*")) == []


async def test_a_grant_that_comes_before_the_first_trainer_is_carried_out() -> None:
    """Agents that died may have left a step whole: the next ones are told before they train."""
    arenas, heard = Arenas(), asyncio.Event()
    running = asyncio.get_running_loop()
    arenas.open(lambda *_: None, nobody)

    def word(_commit: object) -> None:
        running.call_soon_threadsafe(heard.set)

    arenas.tell(word)
    try:
        await asyncio.sleep(0)
        assert not heard.is_set()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trainer:
            await asyncio.to_thread(_connect, trainer, arenas.path)
            async with asyncio.timeout(30):
                await heard.wait()
    finally:
        await arenas.close(5.0)


def _connect(trainer: socket.socket, path: str) -> None:
    trainer.connect(path)
