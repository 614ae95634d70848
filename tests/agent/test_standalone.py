"""holdfast-run without a master: a run of one node with a real master of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent_process import AgentProcess, is_alive, wait_gone

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]

Start = Callable[..., AgentProcess]

TRAIN = """
import os, sys, time
import torch.distributed as dist
import holdfast
dist.init_process_group("gloo")
job = holdfast.init()
def say(*words):  # one write: lines of two ranks must not mix
    os.write(1, " ".join(map(str, (*words, ";\\n"))).encode())
say("start", os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid())
for n in range(1, int(sys.argv[1])):
    time.sleep(0.02)
    if len(sys.argv) > 2 and n == int(sys.argv[2]) and dist.get_rank() == 1:
        raise ValueError("bad luck")
    if job.step(n) is holdfast.SAVE_AND_STOP:
        break
say("end")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start holdfast-run in a clean environment; its temporary files lie in tmp_path/tmp."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    started: list[AgentProcess] = []

    def begin(*args: str) -> AgentProcess:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOLDFAST_", "PET_", "TORCHELASTIC_"))
        }
        agent = AgentProcess(args, {**env, "TMPDIR": str(tmp_path / "tmp")}, tmp_path)
        started.append(agent)
        return agent

    yield begin
    for agent in started:
        agent.end()


def _until(look: Callable[[], object], agent: AgentProcess, within: float = 90.0) -> None:
    deadline = time.monotonic() + within
    while not look():
        assert time.monotonic() < deadline, agent.errors()
        assert agent.process.poll() is None, agent.errors()
        time.sleep(0.02)


def _workers(agent: AgentProcess) -> list[psutil.Process]:
    """Return the processes of the newest start of both ranks."""
    lines = [line.split() for line in agent.output().splitlines() if line.startswith("start")]
    return [psutil.Process(int(words[3])) for words in lines[-2:]]


def _master(agent: AgentProcess) -> psutil.Process:
    return next(p for p in agent.family() if "holdfast_master.main" in " ".join(p.cmdline()))


def test_a_run_ends_with_0_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """Success is exit code 0, with no process and no temporary file."""
    agent = start("--nproc-per-node=2", "train.py", "10")
    assert agent.wait(120) == 0
    assert agent.output().count("end") == 2
    assert list((tmp_path / "tmp").glob("holdfast*")) == []


def test_an_agent_started_with_closed_streams_opens_none_of_its_own_there(tmp_path: Path) -> None:
    """What the script prints goes nowhere, and not into a socket."""
    script, seen = tmp_path / "look.py", tmp_path / "seen"
    script.write_text(
        "import os, sys\nprint('lost', flush=True)\n"
        f"open({str(seen)!r}, 'w').write(' '.join(os.readlink(f'/proc/self/fd/{{n}}') "
        "for n in range(3)))\n"
    )
    closed = 'exec "$@" <&- >&- 2>&-'
    command = [sys.executable, "-c", "from holdfast_agent.main import main; main()", str(script)]
    subprocess.run(["/bin/sh", "-c", closed, "sh", *command], check=True, timeout=120)
    assert seen.read_text() == " ".join(["/dev/null"] * 3)


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_script_that_always_fails_is_started_as_often_as_by_torchrun(
    restarts: int, start: Start
) -> None:
    """--max-restarts=N means N restarts, then exit code 1 with the culprit's traceback."""
    agent = start("--nproc-per-node=2", f"--max-restarts={restarts}", "train.py", "10", "1")
    assert agent.wait(120) == 1
    assert agent.output().count("start 1") == restarts + 1
    errors = agent.errors()
    assert "Root Cause (first observed failure)" in errors
    assert "ValueError: bad luck" in errors
    assert "holdfast-run: the job failed:" in errors
    assert f"failures allows {restarts}" in errors


def test_a_failure_is_survived(start: Start) -> None:
    """Without --max-restarts the run goes on after a failure, with equal restart counts."""
    agent = start("--nproc-per-node=2", "train.py", "2000")
    _until(lambda: agent.output().count("start") == 2, agent)
    _workers(agent)[0].kill()
    _until(lambda: agent.output().count("start") == 4, agent)
    assert "start 0 1" in agent.output()
    assert "start 1 1" in agent.output()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_a_signal_ends_the_run_and_everything(
    number: signal.Signals, code: int, start: Start, tmp_path: Path
) -> None:
    """Ctrl-C: workers, zygote, store and master are gone, and so are the temporary files."""
    agent = start("--nproc-per-node=2", "train.py", "5000")
    _until(lambda: agent.output().count("start") == 2, agent)
    family = agent.family()
    agent.send(number)
    assert agent.wait(20) == code
    assert wait_gone(family, 2.0) == []
    assert list((tmp_path / "tmp").glob("holdfast_run_*")) == []


def test_a_killed_agent_takes_its_master_along(start: Start, tmp_path: Path) -> None:
    """After kill -9 the master does not serve on, and the next agent removes what is left."""
    agent = start("--nproc-per-node=1", "train.py", "5000")
    _until(lambda: "start" in agent.output(), agent)
    family = agent.family()
    assert _master(agent) in family
    agent.send(signal.SIGKILL)
    assert wait_gone(family, 3.0) == []
    left = list((tmp_path / "tmp").glob("holdfast_*"))
    assert sorted(path.name.split("_")[1] in ("run", "arena") for path in left) == [
        False,
        True,
        True,
    ]
    assert start("--nproc-per-node=1", "--no-python", "true").wait(120) == 0
    assert list((tmp_path / "tmp").glob("holdfast_*")) == []


def test_a_killed_master_has_a_successor_and_training_goes_on(start: Start) -> None:
    """The workers do not notice; the run still ends with 0."""
    agent = start("--nproc-per-node=2", "train.py", "400")
    _until(lambda: agent.output().count("start") == 2, agent)
    workers = _workers(agent)
    _master(agent).kill()
    _until(lambda: "the master of epoch 2" in agent.errors(), agent)
    assert [is_alive(worker) for worker in workers] == [True, True]
    assert agent.wait(120) == 0
    assert agent.output().count("start") == 2


def test_workers_may_end_at_different_times(start: Start, tmp_path: Path) -> None:
    """A rank that ends seconds before another does not end the run."""
    (tmp_path / "uneven.py").write_text(
        "import os, time; time.sleep(3 * int(os.environ['RANK'])); print('end', flush=True)"
    )
    agent = start("--nproc-per-node=2", "uneven.py")
    assert agent.wait(120) == 0
    assert agent.output().count("end") == 2


def test_a_run_that_stood_still_goes_on_afterwards(start: Start) -> None:
    """Frozen for longer than the lease: the workers die, and a new round follows when it wakes."""
    agent = start("--nproc-per-node=2", "train.py", "300")
    _until(lambda: agent.output().count("start") == 2, agent)
    workers = _workers(agent)
    agent.send(signal.SIGSTOP)
    assert wait_gone(workers, 6.0) == []
    time.sleep(2.0)  # the master gives up on the node meanwhile
    agent.send(signal.SIGCONT)
    _until(lambda: agent.output().count("start") == 4, agent)
    assert agent.wait(120) == 0
