"""The mark of a dying trainer: when the kernel sets it, when it does not, who is woken."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agents.page_worker import page_of, python
from holdfast import robust_mark as marks
from holdfast.page import Page
from holdfast.page_layout import (
    AGENT_WORDS,
    MARK_BYTES,
    MARK_OFFSET,
    NOTICE_BYTES,
    NOTICE_OFFSET,
    PAGE_BYTES,
    Word,
)
from holdfast.robust_mark import OWNER_DIED, RobustMark

HOLD = """
import os, sys, threading, time
from holdfast.robust_mark import RobustMark
page, slot = map(int, os.environ["HOLDFAST_PAGE"].split(":")[:2])
mark = RobustMark(page, slot)
print(mark.hold(), flush=True)
"""
PATIENCE_SECONDS = 30.0
SLOT = 1

pytestmark = pytest.mark.skipif(
    platform.machine() not in marks._FUTEX_CALLS, reason="no mark on this machine"
)


@contextmanager
def holder(page: Page, then: str) -> Iterator[tuple[RobustMark, subprocess.Popen[str]]]:
    """A process that holds the mark and then does something."""
    mark = RobustMark(page.fd, SLOT)
    with python(page, SLOT, HOLD + then) as process:
        assert _line(process) == "True"
        yield mark, process


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _changed(mark: RobustMark) -> int:
    """Wait until the word has the bit."""
    word = mark.word()
    while not word & OWNER_DIED:
        seen, word = word, mark.wait(word, PATIENCE_SECONDS)
        assert word != seen, f"still {word:#x} after {PATIENCE_SECONDS} s"
    return word


def test_the_mark_lies_behind_everything_else_of_its_slot() -> None:
    """It overlaps no word and no notice."""
    assert 8 * max(word for word in Word if word >= AGENT_WORDS) + 8 <= NOTICE_OFFSET
    assert NOTICE_OFFSET + NOTICE_BYTES <= MARK_OFFSET
    assert MARK_OFFSET + MARK_BYTES <= PAGE_BYTES


def test_a_slot_that_nobody_holds_has_no_mark() -> None:
    """A trainer of a release without the mark leaves its bytes empty: nothing is ever seen."""
    with page_of(2) as page, python(page, SLOT, "print(1)") as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        assert RobustMark(page.fd, SLOT).word() == 0


def test_a_waiter_hears_who_holds_the_mark() -> None:
    """It waits before there is a holder, and goes on waiting for the holder's end."""
    with page_of(2) as page, holder(page, "sys.stdin.read()") as (mark, process):
        assert mark.wait(0, PATIENCE_SECONDS) & ~marks.WAITERS == process.pid


@pytest.mark.parametrize(
    "ending",
    [
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), 11)",
        "os._exit(0)",
        "os._exit(3)",
        "raise ValueError",
        "pass",
        "threading.Thread(target=os._exit, args=(3,)).start(); time.sleep(60)",
        "threading.Thread(target=time.sleep, args=(60,)).start(); os.kill(os.getpid(), 9)",
    ],
)
def test_every_end_of_the_process_sets_the_mark(ending: str) -> None:
    """By a signal, by itself, from another thread, with other threads alive."""
    with page_of(2) as page, holder(page, ending) as (mark, _):
        assert _changed(mark) & OWNER_DIED


def test_a_kill_from_outside_wakes_the_waiter() -> None:
    """The wait ends by the kernel's wake, long before its time is over."""
    with page_of(2) as page, holder(page, "sys.stdin.read()") as (mark, process):
        seen = mark.word()
        process.kill()
        assert mark.wait(seen, PATIENCE_SECONDS) & OWNER_DIED
        assert process.wait(PATIENCE_SECONDS) == -9


@pytest.mark.parametrize(
    "deed",
    [
        "pid = os.fork()\nif pid == 0: os._exit(1)\nos.waitpid(pid, 0)",
        "pid = os.fork()\nif pid == 0: os.kill(os.getpid(), 9)\nos.waitpid(pid, 0)",
        "import subprocess; subprocess.run(['true'])",
        "thread = threading.Thread(target=print); thread.start(); thread.join()",
    ],
)
def test_a_childs_or_threads_end_sets_no_mark(deed: str) -> None:
    """Only the main thread of the process that holds it does."""
    code = f"\n{deed}\nprint('done', flush=True); sys.stdin.read()"
    with page_of(2) as page, holder(page, code) as (mark, process):
        while _line(process) != "done":
            pass
        assert mark.word() & ~marks.WAITERS == process.pid


def test_another_program_in_the_process_sets_the_mark() -> None:
    """`exec` gives all robust mutexes up, so a mark alone is no death."""
    code = "os.execv(sys.executable, [sys.executable, '-c', 'input(); raise SystemExit(7)'])"
    with page_of(2) as page, holder(page, code) as (mark, process):
        assert _changed(mark) & OWNER_DIED
        assert process.poll() is None
        process.communicate("\n", PATIENCE_SECONDS)
        assert process.returncode == 7


def test_only_a_main_thread_holds_the_mark() -> None:
    """Another thread may end long before its process."""
    code = """
thread = threading.Thread(target=lambda: print(mark.hold(), flush=True)); thread.start()
thread.join()
"""
    with (
        page_of(2) as page,
        python(page, SLOT, HOLD.replace("print(mark.hold(), flush=True)", code)) as process,
    ):
        assert _line(process) == "False"


def test_a_c_library_without_robust_mutexes_leaves_the_mark_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody holds it, nothing fails."""
    monkeypatch.setattr(marks, "_libc", object)
    with page_of(2) as page:
        mark = RobustMark(page.fd, SLOT)
        assert not mark.hold()
        assert mark.word() == 0


def test_an_unknown_machine_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the system call is not known there: an error, and no busy loop."""
    monkeypatch.setattr(platform, "machine", lambda: "unheard-of")
    with page_of(2) as page, pytest.raises(OSError, match=os.strerror(38)):
        RobustMark(page.fd, SLOT).wait(0, 1.0)
