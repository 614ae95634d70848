"""The operator's log: one JSON object per line, like the master's, with the job's name."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, TextIO

from holdfast_operator.settings import LogLevel

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
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


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, job and its round, the fields of `extra`, an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        known = _JOB.get()
        if known is not None:
            job, newest = known
            round_ = newest()
            line |= {"job": job} if round_ is None else {"job": job, "round": round_}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start(level: LogLevel, stream: TextIO) -> None:
    """Write this process's log to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kopf logs a line for each event that it passes on.
    if level is not LogLevel.DEBUG:
        logging.getLogger("kopf").setLevel(max(logging.WARNING, root.level))
