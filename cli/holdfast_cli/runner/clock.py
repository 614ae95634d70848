"""The runner's time: seconds since 1970 as at its start, from then on counted steadily.

The plan compares instants, as the operator does with those of pods. Here all of them are this
process's own, so a wall clock that is set back in between (by NTP, by hand) must not count.
"""

from __future__ import annotations

import time
from typing import Final

_BEGAN: Final = time.time() - time.monotonic()


def now() -> float:
    """Return the time."""
    return _BEGAN + time.monotonic()
