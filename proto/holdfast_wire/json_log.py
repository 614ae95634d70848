"""A process's log as one JSON object a line, for the master and the operator."""

from __future__ import annotations

import enum
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, TextIO

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogLevel(enum.StrEnum):
    """Lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _JsonFormatter(logging.Formatter):
    """Time, level, logger, message, `about`, the fields of `extra`, the trace of an exception."""

    def __init__(self, about: Callable[[], Mapping[str, object]]) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._about(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start(level: str, stream: TextIO, about: Callable[[], Mapping[str, object]] = dict) -> None:
    """Write this process's log to a stream, from a level on; about: returns fields of a line."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonFormatter(about))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
