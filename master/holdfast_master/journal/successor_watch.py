"""Detects a newer master that writes the same journal: this master is then a zombie.

Belongs here: looking at the directory without holding up the loop. Does not belong here: the
consequences (`loop`), and reports of agents about newer masters (`core`).

Agents tell a zombie too, but only where they still reach it: one that was stopped while its
successor got another address would wait for nodes that never come, and fail the job by itself.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from holdfast_master.journal.segments import JournalError, epochs

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Between two looks."""
PATIENCE_SECONDS = 1.0
"""A disk that does not answer for this long is not waited for."""


class Lookout:
    """Looks for the files of newer masters."""

    def __init__(self, directory: Path, epoch: int) -> None:
        """Look at `directory` for epochs above `epoch`."""
        self._directory = directory
        self._epoch = epoch
        self._looking: asyncio.Task[None] | None = None
        self.newer = ""
        """Who has begun, for people; empty: nobody."""

    async def run(self) -> None:
        """Look again and again, until somebody is found."""
        while not self.newer:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look now; a disk that hangs is not waited for, and is looked at once only."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(self._look), name="lookout")
        await asyncio.wait({self._looking}, timeout=PATIENCE_SECONDS)

    def _look(self) -> None:
        try:
            newest = max(epochs(self._directory), default=0)
        except (OSError, JournalError) as error:
            log.debug("the journal cannot be listed: %s", error)
            return
        if newest > self._epoch:
            self.newer = (
                f"a master of epoch {newest} writes {self._directory}, this one has epoch "
                f"{self._epoch}"
            )
