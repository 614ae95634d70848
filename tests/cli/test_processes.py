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

from holdfast_cli.runner import processes


def _command(script: str, log: Path) -> processes.Command:
    return processes.Command(
        argv=[sys.executable, "-c", textwrap.dedent(script)],
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
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(60)
    """
    log = tmp_path / "log"
    running = await processes.start(_command(script, log))
    assert await processes.wait_until(lambda: "ready" in log.read_text(), 20)
    assert await asyncio.wait_for(running.end(0.2), 20) == -signal.SIGKILL


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
    script = f"""
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
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
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
    script = f"""
        import os, pathlib, subprocess, sys
        from holdfast_cli.runner import processes
        processes.become_subreaper()
        subprocess.run(["sh", "-c", "setsid sleep 60 & echo $! > {pids}"], check=True)
        left = processes.sweep()
        print(left)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() == "[]", done.stderr
    _wait_for(lambda: not _alive(int(pids.read_text())))


def _wait_for(true: object, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
