"""A fault that nobody had thought of ends one piece of work and leaves a trace and a count."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from checkpoints.led_nodes import rank_of, received, served
from checkpoints.lone_peers import nobody
from holdfast import loop_errors
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.protocol import Layout, RequestRefused, Restore
from holdfast.flash.server.worker_thread import WorkerThread, failure_of, outcome_of
from holdfast_agent.checkpoint.arenas import Arenas

LABOUR, SERVICE = "holdfast.flash.server.worker_thread", "holdfast.flash.server.service"


@pytest.fixture(autouse=True)
def _none_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test counts from 0."""
    monkeypatch.setattr(loop_errors, "_counts", type(loop_errors._counts)())


def _fail() -> None:
    raise ZeroDivisionError("nobody thought of it")


def test_a_fault_is_logged_with_its_number_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Its text is the outcome; the trace is in the log, with how many there have been."""
    assert failure_of("one thing", _fail, OSError) == "ZeroDivisionError: nobody thought of it"
    assert outcome_of("another", _fail) == (None, "ZeroDivisionError: nobody thought of it")
    assert loop_errors.counts() == {LABOUR: 2}
    assert [one.getMessage() for one in caplog.records] == [
        "one thing failed (fault 1)",
        "another failed (fault 2)",
    ]
    assert all(one.exc_info for one in caplog.records)


def test_an_error_that_was_expected_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """It is told to whoever asked, and that is all."""
    assert failure_of("one thing", _fail, ArithmeticError) == "nobody thought of it"
    assert (loop_errors.counts(), caplog.records) == ({}, [])


def test_a_labour_counts_what_its_work_and_its_results_raise() -> None:
    """Both threads go on afterwards."""
    worker, taken = WorkerThread(), list[str]()
    worker.start()
    worker.hand_out("a job", _fail, lambda _, error: taken.append(error))
    worker.hand_out("a job", lambda: "done", lambda *_: _fail())
    worker.hand_out("a job", lambda: "done", lambda found, _: taken.append(str(found)))
    while worker.in_flight:
        worker.take_in()
    worker.end()
    assert taken == ["ZeroDivisionError: nobody thought of it", "done"]
    assert loop_errors.counts() == {LABOUR: 2}


def test_a_message_that_a_keeper_stumbles_over_is_counted_and_refused(tmp_path: Path) -> None:
    """One trainer's fault is not the others'."""
    with served(tmp_path) as node, rank_of(node, tmp_path, 0) as rank:
        rank.link.send(Layout(table="\ud800", bytes_room=4096, slots=3))
        refused = received(rank.link, RequestRefused)
        assert "UnicodeEncodeError" in refused.error
        assert loop_errors.counts() == {SERVICE: 1}
        rank.save(Version(1, 1))
        rank.link.send(Restore())
        node.master.hears("asks")


async def test_an_agent_counts_what_its_keeper_could_not_answer(tmp_path: Path) -> None:
    """A question that fails returns None and is counted. The keeper serves on."""
    arenas = Arenas()
    arenas.open(lambda *_: None, nobody)
    trainer = rank_of(arenas, tmp_path, 0)
    rank = await asyncio.to_thread(trainer.__enter__)
    wrong: Any = None
    assert await arenas.lend(wrong, 0) is None
    word: Any = lambda *_: _fail()  # noqa: E731 - as `lend` has one
    assert await arenas._ask(word, lambda _: None) is None
    assert loop_errors.counts() == {"holdfast_agent.checkpoint.arenas": 1}
    await asyncio.to_thread(rank.save, Version(1, 1))
    await asyncio.to_thread(trainer.__exit__, None, None, None)
    await arenas.close(5.0)


def test_the_last_word_of_a_process_has_the_counts(caplog: pytest.LogCaptureFixture) -> None:
    """By where they were caught; nothing is said where there were none."""
    log = logging.getLogger("test")
    loop_errors.say(log)
    assert not caplog.records
    failure_of("one thing", _fail)
    failure_of("another", _fail)
    caplog.clear()
    loop_errors.say(log)
    (said,) = caplog.records
    assert said.getMessage() == (
        "2 faults were caught, each is in this log (holdfast.flash.server.worker_thread: 2)"
    )


def test_who_wakes_a_labour_that_has_ended_writes_into_nobodys_file(tmp_path: Path) -> None:
    """The number of its pipe may be another file's by then: a keeper may end before its agent."""
    worker = WorkerThread()
    worker.start()
    worker.end()
    with (tmp_path / "file").open("wb") as file:
        os.dup2(file.fileno(), worker._wake_write)
        worker.wake()
        worker.post(_fail)
        os.close(worker._wake_write)
    assert (tmp_path / "file").stat().st_size == 0
