"""Standard error of this process, read back: refused TLS handshakes become log lines and counts.

Belongs here: the descriptors and the thread. Does not belong here: what gRPC's lines mean (see
`handshake_log`). Imports no grpc: `arm` must have run before anything does.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import logging
import os
import select
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Self, TextIO

from holdfast_master.handshake_log import MEANING, Found, HandshakeReason, LogSorter, Refused, Said

log = logging.getLogger(__name__)
_GRPC_LOG = logging.getLogger("grpc.core")
# Its information is about single connections, which the services log as far as it matters.
_LEVELS = {
    "I": logging.DEBUG,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}

PIPE_BYTES = 1024 * 1024
"""Room for the lines of a thousand connections at once."""
IDLE_SECONDS = 0.1
"""A record counts as whole when nothing has followed it for this long."""
LINE_SECONDS = 1.0
"""Refusals of one reason are logged at most this often; each line has their count."""


def arm(environment: MutableMapping[str, str]) -> None:
    """Ask grpc-core, which is yet to be loaded, to tell of every handshake."""
    environment["GRPC_VERBOSITY"] = "INFO"
    environment["GRPC_TRACE"] = "handshaker"


@dataclasses.dataclass(slots=True)
class _Tally:
    """Refusals of one reason."""

    total: int = 0
    unlogged: int = 0
    next_line: float = 0.0
    newest: Refused | None = None


class HandshakeLog:
    """Counts refused handshakes and logs them, a bounded number of lines each second."""

    def __init__(self) -> None:
        self._tallies: dict[HandshakeReason, _Tally] = collections.defaultdict(_Tally)

    def counts(self) -> dict[HandshakeReason, int]:
        """Return how many handshakes were refused for each reason."""
        return {reason: tally.total for reason, tally in list(self._tallies.items())}

    @property
    def unlogged(self) -> bool:
        """Whether a refusal waits for its line."""
        return any(tally.newest is not None for tally in list(self._tallies.values()))

    def note(self, refused: Refused, mono: float) -> None:
        """Take one refused handshake."""
        tally = self._tallies[refused.reason]
        tally.total += 1
        tally.unlogged += 1
        tally.newest = refused
        self.write_due(mono)

    def write_due(self, mono: float) -> None:
        """Log what has not been logged and may be by now."""
        for reason, tally in self._tallies.items():
            if tally.newest is None or mono < tally.next_line:
                continue
            log.warning(
                "TLS handshake refused: %s",
                MEANING[reason],
                extra={
                    "reason": reason.value,
                    "peer": tally.newest.peer,
                    "detail": tally.newest.detail,
                    "count": tally.unlogged,
                    "total": tally.total,
                },
            )
            tally.newest, tally.unlogged = None, 0
            tally.next_line = mono + LINE_SECONDS


class CapturedStderr:
    """Descriptor 2 as a pipe into this process. Use as a context manager, around all of gRPC."""

    def __init__(self, handshakes: HandshakeLog) -> None:
        self._handshakes = handshakes
        self._sorter = LogSorter()
        self._saved = -1
        self._thread: threading.Thread | None = None
        self.stream: TextIO = sys.stderr
        """The real standard error."""

    def __enter__(self) -> Self:
        self._saved = os.dup(2)
        # Python's own messages go past the pipe, so that none is lost when this process dies.
        self.stream = os.fdopen(os.dup(self._saved), "w", buffering=1)
        sys.stderr = self.stream
        reader, writer = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        # A thread that logs while it holds Python's lock must not wait for the thread that reads.
        os.set_blocking(writer, False)
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._read, args=(reader,), name="stderr")
        self._thread.daemon = True
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        sys.stderr = sys.__stderr__

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while True:
                # Woken for nothing ten times a second, this thread cost as much as six heartbeats.
                idle = IDLE_SECONDS if self._unfinished() else None
                ready, _, _ = select.select([pipe], [], [], idle)
                data = pipe.read(PIPE_BYTES) if ready else b""
                if ready and not data:
                    break
                self._take(self._sorter.feed(data) if ready else self._sorter.flush())
        self._take(self._sorter.flush())

    def _unfinished(self) -> bool:
        return self._sorter.waits or self._handshakes.unlogged

    def _take(self, found: list[Found]) -> None:
        now = time.monotonic()
        for item in found:
            if isinstance(item, Refused):
                self._handshakes.note(item, now)
            elif isinstance(item, Said):
                _GRPC_LOG.log(_LEVELS[item.severity], "%s", item.text)
            else:
                # Whoever read standard error may have gone; refusals are counted all the same.
                with contextlib.suppress(OSError):
                    os.write(self._saved, item.data)
        self._handshakes.write_due(now)
