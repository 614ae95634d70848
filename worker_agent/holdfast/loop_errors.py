"""Logs and counts unexpected errors that the top of a loop caught.

Such an error ends one piece of work and not the process. Each line in the log has the number of the
error, and the process logs the counts when it ends. Does not belong here: expected errors; the
caller that asked gets those.
"""

from __future__ import annotations

import collections
import logging
import threading

_lock = threading.Lock()
_counts: collections.Counter[str] = collections.Counter()


def count(where: str) -> int:
    """Count an error that was caught in a module; return the count so far, for the log."""
    with _lock:
        _counts[where] += 1
        return _counts.total()


def counts() -> dict[str, int]:
    """Return the counts so far, by module; from any thread."""
    with _lock:
        return dict(_counts)


def say(log: logging.Logger) -> None:
    """Log the counts when the process ends; log nothing when there was no error."""
    found = counts()
    if found:
        named = ", ".join(f"{name}: {number}" for name, number in sorted(found.items()))
        log.warning("%d faults were caught, each is in this log (%s)", sum(found.values()), named)
