"""What was caught at the top of a loop although nobody had thought of it: logged, and counted.

Such a fault ends one piece of work and not the process, so somebody has to see that there was one:
each line in the log has its number, and who ends the process says how many there were. Does not
belong here: errors that were expected, which are told to whoever asked.
"""

from __future__ import annotations

import collections
import logging
import threading

_lock = threading.Lock()
_counts: collections.Counter[str] = collections.Counter()


def count(where: str) -> int:
    """Count one that was caught in a module; return how many there are now, for the log's line."""
    with _lock:
        _counts[where] += 1
        return _counts.total()


def counts() -> dict[str, int]:
    """Return how many there were so far, by module; from any thread."""
    with _lock:
        return dict(_counts)


def say(log: logging.Logger) -> None:
    """Write the counts, as a process's last word; nothing where there was no fault."""
    found = counts()
    if found:
        named = ", ".join(f"{name}: {number}" for name, number in sorted(found.items()))
        log.warning("%d faults were caught, each is in this log (%s)", sum(found.values()), named)
