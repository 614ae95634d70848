"""Lines of the operator's log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast_operator import logs
from holdfast_wire.json_log import LogLevel


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Send the log to a buffer until the test is over."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    written = io.StringIO()
    logs.start(LogLevel.INFO, written)
    yield written
    root.handlers[:] = before[0]
    root.setLevel(before[1])


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_each_line_says_which_job_and_round_it_is_about(stream: io.StringIO) -> None:
    """Also one of a task that a look began, by then with a newer round; one of none has neither."""
    log, rounds = logging.getLogger("a"), [7]
    told = asyncio.Event()

    async def later() -> None:
        await told.wait()
        log.warning("over")

    with logs.about("team/gpt", lambda: rounds[-1]):
        log.info("made pod %s", "p", extra={"uid": "u-1"})
        task = asyncio.create_task(later())
    with logs.about("team/new", lambda: None):
        log.info("begins")
    rounds.append(8)
    told.set()
    await task
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("it\nfailed")
    first, second, third, last = _lines(stream)
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "a",
        "message": "made pod p",
        "job": "team/gpt",
        "round": 7,
        "uid": "u-1",
    }
    assert (second["job"], "round" in second) == ("team/new", False)
    assert (third["message"], third["job"], third["round"]) == ("over", "team/gpt", 8)
    assert (last["message"], "job" in last) == ("it\nfailed", False)
    assert "ValueError: odd" in last["exception"]
