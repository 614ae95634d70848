"""The runner's time: Unix time at its start, from then on counted by a steady clock.

The plan compares points in time, as the operator does with those of pods. Here all of them are this
process's own, so a wall clock that is set back meanwhile (by NTP, by hand) must not count.
"""

from __future__ import annotations

import time
from typing import Final

_BEGAN: Final = time.time() - time.monotonic()


def now() -> float:
    """Return the time."""
    return _BEGAN + time.monotonic()
