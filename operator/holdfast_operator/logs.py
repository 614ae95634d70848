"""The operator's log: one JSON object per line, like the master's, with the job's name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

from holdfast_wire import json_log
from holdfast_wire.json_log import LogLevel

Round = Callable[[], int | None]
"""Returns the newest known round of a job."""
_JOB: ContextVar[tuple[str, Round] | None] = ContextVar("job", default=None)


@contextlib.contextmanager
def about(job: str, newest: Round) -> Iterator[None]:
    """Name the job in every line that is logged inside, also by tasks that begin there."""
    token = _JOB.set((job, newest))
    try:
        yield
    finally:
        _JOB.reset(token)


def _about() -> dict[str, object]:
    known = _JOB.get()
    if known is None:
        return {}
    job, newest = known
    round_ = newest()
    return {"job": job} if round_ is None else {"job": job, "round": round_}


def start(level: LogLevel, stream: TextIO) -> None:
    """Write this process's log to a stream."""
    json_log.start(level, stream, _about)
    # kopf logs a line for each event that it passes on.
    if level is not LogLevel.DEBUG:
        logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
