"""Watchdog for stalls of this process: SIGSTOP, a paused machine, a starved processor.

Belongs here: arithmetic on lateness. Does not belong here: its consequences.
"""

from __future__ import annotations

import asyncio
import time

PERIOD_SECONDS = 0.25
"""Between two looks at the clock: an eighth of a second of a stall goes unseen on average."""
LATE_SECONDS = 1.0
"""A look this much too late is a stall. Default: above what a busy machine does to an idle
process, and a fifth of the silence limit."""


class Watchdog:
    """Adds up the time in which nothing ran here."""

    def __init__(self, mono: float) -> None:
        self._due = mono + PERIOD_SECONDS
        self._stalled = 0.0

    def look(self, mono: float) -> None:
        """Count what is late at `mono`, and begin a new period."""
        late = mono - self._due
        if late > LATE_SECONDS:
            self._stalled += late
        self._due = mono + PERIOD_SECONDS

    def take(self, mono: float) -> float:
        """Return the seconds that were lost since the last call.

        Looks at the clock itself: after a stall the caller may run before the periodic look does.
        """
        if mono - self._due > LATE_SECONDS:
            self.look(mono)
        stalled, self._stalled = self._stalled, 0.0
        return stalled

    async def run(self) -> None:
        """Look at the clock each period, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            self.look(time.monotonic())
