"""Workers that are being taken down: their mark, and the end that it foretells.

The zygote is stopped meanwhile, so that nobody takes the dead away.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.zygote_driver import PATIENCE_SECONDS, Driver, agent
from holdfast.robust_mark import OWNER_DIED, WAITERS, RobustMark
from holdfast_agent.zygote.process_tree import end_of_dying
from holdfast_agent.zygote.protocol import (
    Ready,
    RoundDead,
    ScriptMode,
    WorkerExitedEvent,
    WorkerStarted,
)

WAIT_FOR_FILE = """
import os, pathlib, sys, threading, time
print("up", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.005)
"""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Hold a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _start(driver: Driver, deed: str) -> tuple[WorkerStarted, RobustMark]:
    """Start a rank that does something once the file `go` is there."""
    (driver.folder / "go").unlink(missing_ok=True)
    started = driver.start(WAIT_FOR_FILE + deed, cwd=str(driver.folder))
    mark = RobustMark(driver.page.fd, 0)
    driver.until(lambda: mark.word() & ~WAITERS == started.pid, "the worker to hold its mark")
    return started, mark


def _marked(driver: Driver, mark: RobustMark) -> None:
    (driver.folder / "go").touch()
    driver.until(lambda: bool(mark.word() & OWNER_DIED), "the mark")


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 11)", -11),
        ("raise ValueError", 1),
        ("sys.exit(200)", 200),
        ("os._exit(3)", 3),
        ("os._exit(0)", 0),
        ("", 0),
        ("threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(60)", 5),
        ("threading.Thread(target=time.sleep, args=(60,)).start(); os._exit(6)", 6),
    ],
)
def test_the_end_of_a_dying_worker_is_known_before_the_zygote_tells(
    shared: Driver, deed: str, code: int
) -> None:
    """As soon as the mark is set, and it is what the zygote says later."""
    started, mark = _start(shared, deed)
    zygote = shared.zygote()
    assert end_of_dying(started.pid, zygote) is None, "it lives"
    with stopped(zygote):
        _marked(shared, mark)
        assert end_of_dying(started.pid, zygote) == code
        assert end_of_dying(started.pid, os.getpid()) is None, "another's child"
    exited = shared.wait(WorkerExitedEvent)
    assert code == exited.exit_code
    shared.wait(RoundDead)
    assert end_of_dying(started.pid, zygote) is None, "gone"


@pytest.mark.parametrize(
    "start",
    [
        "os.execv(sys.executable, command)",
        "threading.Thread(target=os.execv, args=(sys.executable, command)).start(); time.sleep(60)",
    ],
)
def test_a_worker_that_becomes_another_program_does_not_die(shared: Driver, start: str) -> None:
    """The mark is set all the same; its end comes later, with its own code."""
    program = "import pathlib, time; pathlib.Path('lives').touch(); time.sleep(60)"
    command = f"command = [sys.executable, '-c', {program!r}]\n"
    (shared.folder / "lives").unlink(missing_ok=True)
    started, mark = _start(shared, command + start)
    _marked(shared, mark)
    assert end_of_dying(started.pid, shared.zygote()) in (None, 0), "never a failure"
    shared.until((shared.folder / "lives").exists, "the new program")
    assert end_of_dying(started.pid, shared.zygote()) is None
    os.kill(started.pid, signal.SIGTERM)
    assert shared.wait(WorkerExitedEvent).exit_code == -signal.SIGTERM


def test_a_program_holds_no_mark(shared: Driver) -> None:
    """Of --no-python the zygote alone tells, as ever."""
    ended = shared.run_rank(argv=("false",), mode=ScriptMode.BINARY)
    assert ended.status == 1
    assert RobustMark(shared.page.fd, 0).word() == 0


def test_a_child_that_a_worker_leaves_behind_does_not_hide_its_death(shared: Driver) -> None:
    """It has inherited the page and not the mutex."""
    deed = "os.fork() or time.sleep(60); os.kill(os.getpid(), 9)"
    started, mark = _start(shared, deed)
    with stopped(shared.zygote()):
        _marked(shared, mark)
        assert end_of_dying(started.pid, shared.zygote()) == -9
    assert shared.wait(WorkerExitedEvent).exit_code == -signal.SIGKILL
    shared.kill()
    shared.wait(RoundDead)


def test_a_fresh_interpreter_holds_the_mark_too(tmp_path: Path) -> None:
    """Whoever sets a variable that counts at import is heard of as early."""
    with agent(tmp_path, fork=False) as driver:
        assert driver.wait(Ready).reason
        started, mark = _start(driver, "os._exit(4)")
        with stopped(driver.zygote()):
            _marked(driver, mark)
            assert end_of_dying(started.pid, driver.zygote()) == 4
        assert driver.wait(WorkerExitedEvent, PATIENCE_SECONDS).exit_code == 4
        driver.wait(RoundDead)
