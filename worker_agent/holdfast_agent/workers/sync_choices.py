"""Choices of replicas how to agree, as a rank of this node tells them (local SGD with switching).

Belongs here: the file to which it appends, and what the master is told of it. Does not belong here:
the choice, which all ranks make alike (`holdfast.local_sgd.triggers.measured`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast_wire import keys
from holdfast_wire.messages import SyncChosen
from holdfast_wire.proto_json import JsonError, from_json

log: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.5
"""Between two looks at the file, s: people read of a choice, and no rank waits."""
MOST_BYTES: Final = 64 * 1024
"""Read of what was appended since the last look: some hundred choices."""


class SyncChoices:
    """What the ranks of the newest round here have chosen."""

    def __init__(self, folder: Callable[[], Path], report: Callable[[Any, int], None]) -> None:
        """Start without a round.

        Args:
            folder: Returns a folder that exists while the agent lives.
            report: Sends (message, round) to the master.
        """
        self._folder, self._report = folder, report
        self._round = 0
        self._read = 0
        """Bytes of the round's file that have been read."""

    def begin(self, round_number: int) -> dict[str, str]:
        """Look at the file of a new round; return the variable that its ranks find it by."""
        self._round, self._read = round_number, 0
        return {keys.ENV_SYNC_CHOICES: str(self._path(round_number))}

    async def run(self) -> None:
        """Look at the file until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._round:
                await self.look()

    async def look(self) -> None:
        """Report what was appended since the last look."""
        number, begin = self._round, self._read
        text = await asyncio.to_thread(_appended, self._path(number), begin)
        if number != self._round or not text:
            return
        self._read = begin + len(text)
        for line in text.decode(errors="replace").splitlines():
            try:
                chosen = from_json(SyncChosen, line)
            except JsonError as error:
                log.warning("a rank's choice of syncs is dropped: %s: %s", line[:200], error)
                continue
            self._report(dataclasses.replace(chosen, round=number), number)

    def _path(self, number: int) -> Path:
        return self._folder() / f"sync-choices-{number}"


def _appended(path: Path, begin: int) -> bytes:
    """Return the whole lines from a byte on; empty: there are none. Blocks."""
    try:
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read(MOST_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:  # people read of a choice later, and training needs nobody to
        log.warning("choices of syncs cannot be read: %s", error)
        return b""
    return text[: text.rfind(b"\n") + 1]
