"""The evidence of the newest incidents: on disk beside the journal, else in memory.

A file has its name only once it is whole. What a disk does not take stays in memory, where a
successor does not find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from holdfast_master.instructions import KeepEvidence
from holdfast_master.journal import filesystem
from holdfast_wire import evidence_file
from holdfast_wire.messages import IncidentEvidence

log = logging.getLogger(__name__)

MOST_INCIDENTS: Final = 50
"""A job that hangs every hour keeps what happened since the day before yesterday."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all files together: small beside a journal, and room for 50 hangs of 500 ranks each."""
READ_SECONDS: Final = 5.0
"""A disk that does not answer for so long has nothing to show."""
_TEMPORARY: Final = ".part"


class EvidenceStore:
    """Evidence by incident; only its thread changes what it knows."""

    def __init__(self, directory: Path | None, writer: str = "") -> None:
        """Take up what earlier masters kept; blocks. Without a directory all is kept in memory.

        writer: tells the temporary files of two masters apart.
        """
        self._directory, self._writer = directory, writer
        self._sizes: dict[str, int] = {}
        """Bytes by incident, oldest first; exchanged whole, so that any thread may read it."""
        self._memory: dict[str, bytes] = {}
        self._coming: set[str] = set()
        self.lost = 0
        """Incidents whose evidence could not be kept."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evidence")
        if directory is not None:
            with contextlib.suppress(OSError):
                self._sizes = evidence_file.listing(directory)

    def keep(self, instruction: KeepEvidence) -> None:
        """Keep it soon; returns at once."""
        self._coming.add(instruction.evidence.incident_id)
        self._thread.submit(self._keep, instruction.evidence)

    def known(self) -> tuple[str, ...]:
        """The ids of the incidents whose evidence is kept or being written."""
        return tuple({**dict.fromkeys(self._sizes), **dict.fromkeys(sorted(self._coming))})

    async def read(self, incident_id: str) -> IncidentEvidence | None:
        """The evidence of an incident; None: none is kept.

        Raises:
            EvidenceFileError: it cannot be read, or is damaged.
        """
        running = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await running.run_in_executor(self._thread, self._read, incident_id)
        except TimeoutError:
            text = f"the disk of {self._directory} does not answer"
            raise evidence_file.EvidenceFileError(text) from None

    def close(self) -> None:
        """Write what waits; blocks."""
        self._thread.shutdown()

    # ------------------------------------------------------------------------------- its thread

    def _read(self, incident_id: str) -> IncidentEvidence | None:
        packed = self._memory.get(incident_id)
        if packed is not None:
            return evidence_file.unpack(packed)
        if self._directory is None:
            return None
        return evidence_file.read(self._directory, incident_id)

    def _keep(self, evidence: IncidentEvidence) -> None:
        name = evidence.incident_id
        try:
            packed = evidence_file.pack(evidence)
            sizes = {known: size for known, size in self._sizes.items() if known != name}
            self._put(name, packed)
            self._sizes = self._within_bounds({**sizes, name: len(packed)})
        except Exception:
            self.lost += 1
            log.exception("the evidence of incident %s is lost (%d so far)", name, self.lost)
        finally:
            self._coming.discard(name)

    def _put(self, name: str, packed: bytes) -> None:
        """Write a file; without a directory, or where that fails, keep it in memory."""
        path = self._directory and evidence_file.path_of(self._directory, name)
        if path is None:
            self._memory[name] = packed
            return
        try:
            self._write(path, packed)
            self._memory.pop(name, None)
        except OSError as error:
            self._memory[name] = packed
            log.error(  # noqa: TRY400 - a full disk needs no traceback
                "the evidence of incident %s is in memory only, %s cannot be written (%s); "
                "free space there, or save it before this master ends",
                name,
                path,
                error,
            )

    def _write(self, path: Path, packed: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        part = path.with_name(f"{path.name}-{self._writer}{_TEMPORARY}")
        try:
            filesystem.write_synced(part, packed)
            filesystem.rename(part, path)
        except OSError:
            with contextlib.suppress(OSError):
                filesystem.remove(part)
            raise
        filesystem.sync_directory(path.parent)

    def _within_bounds(self, sizes: dict[str, int]) -> dict[str, int]:
        """Remove the oldest beyond the bounds, and return what is left; the newest stays."""
        while len(sizes) > 1 and (len(sizes) > MOST_INCIDENTS or sum(sizes.values()) > MOST_BYTES):
            oldest = next(iter(sizes))
            del sizes[oldest]
            self._memory.pop(oldest, None)
            path = self._directory and evidence_file.path_of(self._directory, oldest)
            if path is not None:
                with contextlib.suppress(OSError):
                    filesystem.remove(path)
        self._remove_parts()
        return sizes

    def _remove_parts(self) -> None:
        """Remove what masters that were killed left half written."""
        if self._directory is not None:
            for part in self._directory.glob(f"*{_TEMPORARY}"):
                with contextlib.suppress(OSError):
                    filesystem.remove(part)
