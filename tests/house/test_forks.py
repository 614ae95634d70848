"""Programs that are forks of one process with torch: they are what a start would have made."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from house import forks
from jobs.local_job import RunningJob, elastic_job

pytestmark = pytest.mark.train

SCRIPT = """
import os, sys
assert "torch" in sys.modules and "grpc" not in sys.modules
print(__name__, sys.argv[1:], sys.stdin.read(), os.environ["HERE"], sys.path[0], sys.path[1])
print("told", file=sys.stderr)
open_files = sorted(os.listdir("/proc/self/fd"), key=int)
sys.exit(len(open_files) - 1)  # the folder that was listed
"""


def test_a_script_has_its_arguments_input_variables_and_path_and_no_other_file(
    tmp_path: Path,
) -> None:
    """And torch, but not grpc, whose threads a fork loses; what it wrote comes back."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    env = {**os.environ, "HERE": "there", "PYTHONPATH": str(tmp_path / "more")}
    done = forks.run([str(script), "a", "b"], env=env, given="asked", timeout=60)
    said = f"__main__ ['a', 'b'] asked there {tmp_path} {tmp_path / 'more'}\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, said, "told\n")


@pytest.mark.parametrize(
    ("code", "ended", "said"),
    [
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
    ],
)
def test_an_end_is_that_of_an_interpreter(code: str, ended: int, said: str) -> None:
    """A text, an exception, a signal."""
    done = forks.run(["-c", code], env=os.environ, timeout=60)
    assert done.returncode == ended
    assert done.stderr.endswith(said)


def test_a_program_that_runs_is_killed_and_its_cpu_is_counted() -> None:
    """Until then a test that left it behind would be told; other ends come in between."""
    before = forks.cpu()
    burns = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    told, end = os.pipe()
    given, asked = os.pipe()
    made = forks.start(["-c", burns], env=os.environ, files=[given, end, 2])
    with os.fdopen(told) as lines:
        lines.readline()
    forks.run(["-c", ""], env=os.environ, timeout=60)
    assert made.poll() is None
    assert made.pid in [one.pid for one in psutil.Process().children(recursive=True)]
    with pytest.raises(subprocess.TimeoutExpired):
        made.wait(0.01)
    made.kill()
    assert made.wait(60) == -signal.SIGKILL
    assert forks.cpu() - before >= 0.5
    for one in (end, given, asked):
        os.close(one)


def test_they_outlive_the_thread_that_asked_first() -> None:
    """The process of all forks is its test process's, not one thread's."""
    code = (
        "import os, threading, time\n"
        "from house import forks\n"
        "def ask():\n"
        "    assert forks.run(['-c', ''], env=os.environ, timeout=60).returncode == 0\n"
        "first = threading.Thread(target=ask)\n"
        "first.start(); first.join(); time.sleep(0.2)\n"
        "ask()"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(forks.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def test_an_end_is_awaited_in_an_event_loop() -> None:
    """Also one that came before."""
    made = forks.start(["-c", "raise SystemExit(7)"], env=os.environ, files=[0, 1, 2])

    async def both() -> tuple[int, int]:
        async with asyncio.timeout(60):
            return await made.ended(), await made.ended()

    assert asyncio.run(both()) == (7, 7)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("PYTHONPATH", False),
        ("OMP_NUM_THREADS", True),
        ("HOLDFAST_JOB", True),
        ("LD_PRELOAD", False),
    ],
)
def test_what_is_read_once_at_a_start_needs_one(name: str, *, same: bool) -> None:
    """A fork has the modules and libraries of its parent, and the thread count of all forks."""
    assert forks.forkable(os.environ)
    assert forks.forkable({**os.environ, name: "other"}) is same


_FACTS = """
import json, os, pathlib, sys, time
facts = {"path": sys.path, "argv": sys.argv[2:], "cwd": os.getcwd(), "names": sorted(os.environ)}
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_text(json.dumps(facts))
file.with_suffix(".new").rename(file)
time.sleep(1000)
"""
_STATUS = ("Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "SigIgn", "SigBlk", "Umask")


def _facts(folder: Path, *, cold: bool) -> dict[str, Any]:
    """What an agent of a local job is, and what its rank finds."""
    folder.mkdir()
    (folder / "facts.py").write_text(_FACTS, encoding="utf-8")
    script = [str(folder / "facts.py"), str(folder / "facts.json"), "--one"]
    job = elastic_job("facts", script, model=False, replicas=1)
    with RunningJob(job, folder, cold=cold) as running:
        running.wait_for("the facts", (folder / "facts.json").exists)
        agent = psutil.Process(running.agent_pid(0))
        lines = Path(f"/proc/{agent.pid}/status").read_text("ascii").splitlines()
        found: dict[str, Any] = json.loads((folder / "facts.json").read_text("utf-8"))
        return found | {
            "status": [line for line in lines if line.split(":")[0] in _STATUS],
            "leads": os.getsid(agent.pid) == agent.pid,
            "parent": agent.ppid() == running.process.pid,
            "files": [Path(f"/proc/{agent.pid}/fd/{number}").readlink() for number in (1, 2)],
            "forked": "fork_server.py" in " ".join(agent.cmdline()),
        }


def test_an_agent_of_a_local_job_that_is_a_fork_is_what_a_start_would_have_made(
    tmp_path: Path,
) -> None:
    """Its user, signals, session, parent and files, and what its rank finds, in the same folder."""
    cold = _facts(tmp_path / "job", cold=True)
    (tmp_path / "job").rename(tmp_path / "before")
    forked = _facts(tmp_path / "job", cold=False)
    assert (cold.pop("forked"), forked.pop("forked")) == (False, True)
    assert forked == cold
