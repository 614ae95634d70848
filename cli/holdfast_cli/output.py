"""Standard output whose reader has gone, as in `holdfast events JOB | head -1`.

Belongs here: what a command does then. Does not belong here: what is written (`render`,
`watching`).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

UNREAD = 141
"""Exit code, as of a program that SIGPIPE ends: 128 + 13."""


def abandon() -> None:
    """Send nowhere what is still written to it, also what Python flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(line: str) -> None:
    """Write a line of a command that goes on unread: a job is worth more than the view of it."""
    try:
        print(line, flush=True)
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
        # A full disk behind it. This line is lost; the next ones need not be.
        _drop_waiting()


def _drop_waiting() -> None:
    """Send nowhere what waits in the buffer: it would be in the way of all that follows."""
    kept = os.dup(sys.stdout.fileno())
    try:
        abandon()
        sys.stdout.flush()
    finally:
        os.dup2(kept, sys.stdout.fileno())
        os.close(kept)
