"""Stacks of ranks that hold the GIL: nothing is woken, and no server's thread is used up."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from campaigns.looks import look
from holdfast_agent.health import stacks
from holdfast_agent.health.stacks import HOLDS_THE_GIL, StackQuestions, UnreadableError
from holdfast_agent.health.worker_server import NoAnswerError


async def test_a_look_wakes_no_call_of_c(tmp_path: Path) -> None:
    """Sleep, poll and sem_timedwait go on sleeping; the thread that holds the GIL is the last."""
    stacks, woken = await look(20, tmp_path)
    assert woken == ""
    *others, main = stacks.split("Thread ")[1:]
    assert "poll_with_the_gil" in main
    assert HOLDS_THE_GIL in main
    assert not any(HOLDS_THE_GIL in other for other in others)
    assert len(others) == 2
    assert all("in sleep" in other or "in wait_for_semaphore" in other for other in others)


def test_a_server_without_the_gil_has_one_open_question(tmp_path: Path) -> None:
    """Each question keeps one of its 32 threads; looks once a minute would use them up."""
    path, questions = tmp_path / "0.sock", StackQuestions()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(0.05)
        for _ in range(3):
            with pytest.raises(NoAnswerError):
                questions.traceback(path, 0.05)
        first = server.accept()[0]
        with pytest.raises(TimeoutError):
            server.accept()
        first.close()  # the GIL is free again, and what it answered is old
        with pytest.raises(NoAnswerError):
            questions.traceback(path, 0.05)
        server.accept()[0].close()
        questions.keep([])


async def test_stacks_that_cannot_be_read_say_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is gone, a program that is missing: each has its text."""
    with pytest.raises(UnreadableError, match=r"needs what ptrace needs"):
        await stacks.read_memory(2**22 + 1, 5.0)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreadableError, match=r"pip install py-spy"):
        await stacks.read_memory(os.getpid(), 5.0)
