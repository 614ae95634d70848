"""The master's log: one JSON object a line.

Belongs here: the format and the destination. Does not belong here: the choice of lines.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TextIO

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, the fields of `extra`, and the trace of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start(level: str, file: Path | None, stream: TextIO) -> None:
    """Send this process's log to `file`, made 0600, or else to `stream`.

    Raises:
        OSError: the file cannot be opened.
    """
    if file is not None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stream = os.fdopen(descriptor, "a", encoding="utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its debug lines are about every call.
    logging.getLogger("grpc").setLevel(logging.INFO)
