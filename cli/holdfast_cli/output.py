"""Standard output without a reader, as in `holdfast events JOB | head -1`.

Belongs here: the reaction of a command. Does not belong here: the output itself (`render`,
`live_view`).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

UNREAD = 141
"""Exit code of a program that SIGPIPE ends: 128 + 13."""


def abandon() -> None:
    """Discard all further output, also the flush at Python's end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(line: str) -> None:
    """Write a line of a command that goes on unread: the job matters more than its output."""
    try:
        sys.stdout.write(f"{line}\n")  # in one piece: two threads may write
        sys.stdout.flush()
    except BrokenPipeError:
        abandon()
        with suppress(OSError):
            print(
                "holdfast: nobody reads standard output any more; the job goes on, and "
                "`holdfast watch` shows it",
                file=sys.stderr,
                flush=True,
            )
    except OSError:
        # The disk behind it may be full. This line is lost; the next ones need not be.
        _drop_waiting()


def _drop_waiting() -> None:
    """Discard the buffer: it would block all output that follows."""
    kept = os.dup(sys.stdout.fileno())
    try:
        abandon()
        sys.stdout.flush()
    finally:
        os.dup2(kept, sys.stdout.fileno())
        os.close(kept)
