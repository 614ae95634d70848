"""The process backend: nothing that it started, nor a descendant, outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast_cli.runner import processes
from house.programs import script


def _command(code: str, log: Path) -> processes.Command:
    return processes.Command(
        argv=[sys.executable, "-c", textwrap.dedent(code)],
        env=dict(os.environ),
        cwd=Path.cwd(),
        log=log,
    )


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


async def test_exit_code_and_output_are_kept(tmp_path: Path) -> None:
    """A process's exit code is known and its output is in its log, 0600."""
    log = tmp_path / "log"
    running = await processes.start(_command("print('hello'); raise SystemExit(7)", log))
    assert await asyncio.wait_for(running.wait(), 20) == 7
    assert log.read_text() == "hello\n"
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_deaf_process_is_killed_after_its_grace(tmp_path: Path) -> None:
    """SIGTERM is tried first; a process that ignores it gets SIGKILL."""
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(60)
    """
    log = tmp_path / "log"
    running = await processes.start(_command(code, log))
    assert await processes.wait_until(lambda: "ready" in log.read_text(), 20)
    assert await asyncio.wait_for(running.end(0.2), 20) == -signal.SIGKILL


def test_what_a_command_leaves_in_its_session_ends_with_it(tmp_path: Path) -> None:
    """As in a container whose first process ends; what another command started lives on."""
    code = f"""
        import asyncio, os, pathlib, signal
        from holdfast_cli.runner import processes
        folder = pathlib.Path({str(tmp_path)!r})
        async def start(name, line):
            return await processes.start(processes.Command(
                argv=["sh", "-c", line], env=dict(os.environ), cwd=folder, log=folder / name))
        async def main():
            processes.become_subreaper()
            other = await start("other", "sleep 61 & echo $!; wait")
            ended = await start("ended", "sleep 62 & echo $!")
            await ended.wait()
            while not (folder / "other").read_text():
                await asyncio.sleep(0.01)
            for name in ("ended", "other"):
                pid = (folder / name).read_text().strip()
                state = pathlib.Path(f"/proc/{{pid}}/stat")
                def ended():
                    return state.read_text().rpartition(")")[2].split()[0] in "ZX"
                print(name, await processes.wait_until(ended, 20 if name == "ended" else 0.2))
            processes.sweep()
        asyncio.run(main())
    """
    done = script(code, check=True)
    assert done.stdout.splitlines() == ["ended True", "other False"]


SAVES = """
import signal, sys, time
def save(*_):
    print("asked", flush=True)
    time.sleep({seconds})
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("seconds", "grace_s", "last"), [(0.5, 30, "saved"), (60, 3, "asked")], ids=["ends", "deaf"]
)
def test_what_a_shell_waits_for_has_the_rest_of_the_grace(
    seconds: float, grace_s: float, last: str, tmp_path: Path
) -> None:
    """SIGTERM ends the shell of `holdfast-run …; true` at once, and the agent has still to save."""
    (tmp_path / "saves.py").write_text(SAVES.format(seconds=seconds))
    code = f"""
        import asyncio, os, pathlib, time
        from holdfast_cli.runner import processes
        log = pathlib.Path({str(tmp_path / "log")!r})
        async def main():
            processes.become_subreaper()
            running = await processes.start(processes.Command(
                argv=["sh", "-c", "{sys.executable} saves.py; true"],
                env=dict(os.environ), cwd=log.parent, log=log))
            await processes.wait_until(lambda: "ready" in log.read_text(), 20)
            began = time.monotonic()
            code, _ = await asyncio.gather(running.wait(), running.end({grace_s}))
            print(code, {min(seconds, grace_s)} < time.monotonic() - began < 20)
            await asyncio.to_thread(time.sleep, 0.3)
            processes.sweep()
        asyncio.run(main())
    """
    done = script(code, check=True)
    assert done.stdout.split() == [str(-signal.SIGTERM), "True"], done.stderr
    said = (tmp_path / "log").read_text().split()
    assert said.count("asked") == 1
    assert said[-1] == last


async def test_a_missing_command_says_so_in_the_log(tmp_path: Path) -> None:
    """A command that does not exist ends with 127 and a sentence that names it."""
    command = processes.Command(
        argv=["no-such-command-here"], env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log"
    )
    running = await processes.start(command)
    assert await asyncio.wait_for(running.wait(), 20) == 127
    assert "'no-such-command-here' cannot be started" in (tmp_path / "log").read_text()


def test_killing_the_runner_kills_what_it_started(tmp_path: Path) -> None:
    """SIGKILL of the process that started a pod ends the pod as well."""
    log, pids = tmp_path / "log", tmp_path / "pid"
    code = f"""
        import asyncio, os, pathlib, sys
        from holdfast_cli.runner import processes
        async def main():
            running = await processes.start(processes.Command(
                argv=["sleep", "60"], env=dict(os.environ),
                cwd=pathlib.Path("/"), log=pathlib.Path({str(log)!r})))
            pathlib.Path({str(pids)!r}).write_text(f"{{running.pid}}\\n")
            await asyncio.sleep(60)
        asyncio.run(main())
    """
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        _wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
        pod = int(pids.read_text())
        _wait_for(lambda: b"sleep" in Path(f"/proc/{pod}/cmdline").read_bytes())
    finally:
        runner.kill()
        runner.wait()
    _wait_for(lambda: not _alive(pod))


def test_sweep_ends_orphans_that_left_their_session(tmp_path: Path) -> None:
    """A grandchild that called setsid and lost its parent is found and ended."""
    pids = tmp_path / "pid"
    code = f"""
        import os, pathlib, subprocess, sys
        from holdfast_cli.runner import processes
        processes.become_subreaper()
        subprocess.run(["sh", "-c", "setsid sleep 60 & echo $! > {pids}"], check=True)
        left = processes.sweep()
        print(left)
    """
    done = script(code, check=True)
    assert done.stdout.strip() == "[]", done.stderr
    _wait_for(lambda: not _alive(int(pids.read_text())))


def _wait_for(true: object, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_a_process_that_ends_while_it_is_looked_at_has_no_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder was there a moment ago; an error here once left a runner waiting for ever."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert processes.descendants(ended.pid) == []
