"""Compaction policy: decides by the bytes written since the last base."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast_master.job.state import snapshot
from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal.compaction import CompactionResult, Retention, compact
from holdfast_master.journal.segments import JournalError
from holdfast_master.journal.writer import Journal
from holdfast_wire.messages import PastMaster, SegmentOpened
from holdfast_wire.reasons import EventReason

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""Between two attempts where one has failed."""
SLOW_SECONDS = 30.0
"""A compaction that has taken longer than this is said: the disk is slow."""
_KEPT_MASTERS = 100
"""Earlier masters that a base names, so that their watch tokens stay good."""


Note = Callable[[str, str], None]
"""Takes the reason and the text of an event."""


class Housekeeper:
    """Compacts one journal beside the loop that writes it."""

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        retention: Retention,
        head: SegmentOpened,
        masters: Sequence[PastMaster],
        tail_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; a base is written after `segment_bytes` of facts.

        tail_bytes: written after the newest base when this master began.
        """
        self._directory, self._segment_bytes, self._retention = directory, segment_bytes, retention
        self._head = head
        self._masters = tuple(masters)[-_KEPT_MASTERS:]
        self._covered = -tail_bytes
        self._base_bytes = 0
        self._clock = clock
        self._not_before = 0.0
        self._began = 0.0
        self._running: threading.Thread | None = None
        self._failed = ""
        self._troubled = False
        self._slow_noted = False

    def after_batch(self, journal: Journal, state: JobState, note: Note) -> None:
        """Start a compaction where one is due; costs a comparison where none is.

        Called when all records of a batch are written and before the next input is taken, so that
        the state is what the journal holds.
        """
        if self._running is not None and self._running.is_alive():
            self._mind_slowness(note)
            return
        self._note_trouble(self._failed or journal.rotation_trouble, note)
        written = journal.bytes_written
        # A base that is larger than what it stands for is not worth its writing.
        if written - self._covered < max(self._segment_bytes, self._base_bytes):
            return
        if self._clock() < self._not_before:
            return
        self._began, self._slow_noted = self._clock(), False
        journal.ask_rotation()
        copied = snapshot.copied(state)
        self._running = threading.Thread(target=self._compact, args=(copied, written), daemon=True)
        self._running.start()

    def wait(self, seconds: float) -> None:
        """Wait for a compaction that is under way."""
        if self._running is not None:
            self._running.join(seconds)

    def _mind_slowness(self, note: Note) -> None:
        if not self._slow_noted and self._clock() - self._began > SLOW_SECONDS:
            self._slow_noted = True
            text = f"the journal's compaction has taken {SLOW_SECONDS:.0f} s: a slow disk"
            note(EventReason.JOURNAL_NOT_COMPACTED, f"{text}; old files stay meanwhile")

    def _compact(self, state: JobState, written: int) -> None:
        own = PastMaster(
            epoch=self._head.epoch,
            incarnation=self._head.incarnation,
            newest_event=state.event_sequence,
        )
        mine = (own.epoch, own.incarnation)
        masters = [m for m in self._masters if (m.epoch, m.incarnation) != mine] + [own]
        try:
            done = compact(
                self._directory, self._head, state, masters, self._retention, time.time()
            )
        except (JournalError, OSError) as error:
            log.warning("%s", error)
            self._not_before = self._clock() + RETRY_SECONDS
            self._failed = str(error)
            return
        self._covered, self._base_bytes = written, done.size
        self._failed = ""
        self._log(done, state)

    def _note_trouble(self, trouble: str, note: Note) -> None:
        if trouble and not self._troubled:
            note(EventReason.JOURNAL_NOT_COMPACTED, trouble)
        elif self._troubled and not trouble:
            note(EventReason.JOURNAL_MENDED, "the journal is compacted again")
        self._troubled = bool(trouble)

    def _log(self, done: CompactionResult, state: JobState) -> None:
        log.info(
            "the journal was compacted",
            extra={
                "base": done.path.name,
                "bytes": done.size,
                "sequence": state.sequence,
                "removed": len(done.removed),
                "seconds": round(self._clock() - self._began, 3),
            },
        )
