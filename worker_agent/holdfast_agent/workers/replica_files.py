"""Files by which the ranks of replicas and their agent speak (local SGD); no change ends a process.

The master decides who is in a roster, and `holdfast.local_sgd` what ranks do then.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast_wire import keys
from holdfast_wire.messages import (
    OuterRoster,
    ReplicaReady,
    RosterFailed,
    SyncChosen,
    WorldAssignment,
)
from holdfast_wire.proto_json import JsonError, from_json

log: Final = logging.getLogger(__name__)
FAST_SECONDS: Final = 0.02
"""Between two looks for ranks that are not ready yet, s: the others wait for them, or step."""
SLOW_SECONDS: Final = 0.5
"""Between two looks for ranks that could not meet, s: they have waited for many seconds."""


class RosterFile:
    """Rosters for the ranks of the newest round here; idle where the job has no replicas."""

    def __init__(self, folder: Callable[[], Path], report: Callable[[Any, int], None]) -> None:
        """Start without a replica. `folder` returns one that exists while the agent lives."""
        self._folder, self._report = folder, report
        self._assignment = WorldAssignment()
        self._round = 0
        self._roster: OuterRoster | None = None
        self._written = 0
        """Epoch of the file; 0: there is none."""
        self._ready = False
        self._unmet = 0
        """Newest epoch that was reported as one whose members could not meet."""
        self._changed = asyncio.Event()

    @property
    def path(self) -> Path:
        """File of the replica's rosters, which no other processes have had.

        A master without a journal gives numbers of replicas again, but no round's.
        """
        return self._folder() / f"roster-{self._round}-{self._assignment.replica}"

    def newest(self, round_number: int) -> OuterRoster | None:
        """Return the roster that the ranks of a round are told; None: there is none."""
        return self._roster if round_number == self._round else None

    def begin(self, round_number: int, assignment: WorldAssignment) -> dict[str, str]:
        """Follow the replica of a new round; return the variables that its ranks find rosters by.

        None: the job is one world.
        """
        self._assignment, self._round = assignment, round_number
        self._roster, self._written, self._ready = assignment.roster, 0, False
        self._unmet = 0
        self._changed.set()
        if not assignment.replica:
            return {}
        return {keys.ENV_ROSTER: str(self.path), keys.ENV_REPLICA: str(assignment.replica)}

    def take(self, assignment: WorldAssignment, round_number: int) -> str:
        """Take a newer roster for the ranks of a round; return why not, empty: taken."""
        roster = assignment.roster
        if roster is None or assignment.replica != self._assignment.replica:
            return f"replica {assignment.replica} does not run here"
        if round_number != self._round:
            return f"round {round_number} does not run here"
        if self._roster is not None and roster.epoch <= self._roster.epoch:
            return f"epoch {roster.epoch} is not newer than {self._roster.epoch}"
        self._roster = roster
        self._changed.set()
        return ""

    async def run(self) -> None:
        """Write rosters, and look at what ranks say, until cancelled."""
        while True:
            if not self._assignment.replica:
                await self._changed.wait()
            self._changed.clear()
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOW_SECONDS if self._ready else FAST_SECONDS):
                    await self._changed.wait()

    async def _look(self) -> None:
        assignment, roster, number = self._assignment, self._roster, self._round
        path = self.path
        if roster is not None and roster.epoch > self._written:
            await asyncio.to_thread(_replace, path, roster)
            if number == self._round:
                self._written = roster.epoch
        ranks = range(assignment.base_rank, assignment.base_rank + assignment.local_world_size)
        ready, unmet = await asyncio.to_thread(_said, path, assignment.replica, ranks)
        if number != self._round:
            return
        if ready and not self._ready:
            self._ready = True
            self._report(ReplicaReady(replica=assignment.replica), number)
        if roster is not None and unmet == roster.epoch > self._unmet:
            self._unmet = unmet
            self._report(RosterFailed(epoch=unmet), number)


def _replace(path: Path, roster: OuterRoster) -> None:
    """Replace the file whole: a rank reads the old roster or the new one. Blocks."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(write(roster), encoding="utf-8")
    fresh.replace(path)


def _said(path: Path, replica: int, ranks: range) -> tuple[bool, int]:
    """Return True if all ranks are ready, and the newest epoch that one could not meet in."""
    ready = all(Path(f"{path}.ready-{replica}-{rank}").exists() for rank in ranks)
    unmet = (_epoch(Path(f"{path}.unmet-{replica}-{rank}")) for rank in ranks)
    return ready, max(unmet, default=0)


def _epoch(path: Path) -> int:
    """Return the epoch that a rank wrote; 0: none, or it is being written."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def write(roster: OuterRoster) -> str:
    """Return a roster of the wire as one line of JSON."""
    host = f"[{roster.store_host}]" if ":" in roster.store_host else roster.store_host
    return json.dumps(
        {
            "epoch": roster.epoch,
            "replicas": list(roster.replicas),
            "store": f"{host}:{roster.store_port}",
            "since": list(roster.since),
        }
    )


LOOK_SECONDS: Final = 0.5
"""Between two looks at the file, s: people read of a choice, and no rank waits."""
MOST_BYTES: Final = 64 * 1024
"""Read of what was appended since the last look: some hundred choices."""


class SyncChoices:
    """Choices of the ranks of the newest round here."""

    def __init__(self, folder: Callable[[], Path], report: Callable[[Any, int], None]) -> None:
        """Start without a round. `folder` returns one that exists while the agent lives."""
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
