"""Storage of a master on disk: journal, bases, recording; the watch for a newer master."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from pathlib import Path

from holdfast_master.core import Core
from holdfast_master.instructions import JOURNAL_FORMAT
from holdfast_master.job.state.job_state import JobState
from holdfast_master.journal.compaction import Retention
from holdfast_master.journal.compaction_policy import Housekeeper, Note
from holdfast_master.journal.reader import History, read_history
from holdfast_master.journal.segments import JournalError, epochs
from holdfast_master.journal.writer import Journal
from holdfast_master.loop.loop import Decider
from holdfast_master.process.evidence_store import EvidenceStore
from holdfast_master.process.settings import MasterConfig
from holdfast_master.replay.files import FORMAT as RECORDING_FORMAT
from holdfast_master.replay.recorder import InputRecorder, RecordedCore
from holdfast_wire import evidence_file
from holdfast_wire.messages import RecordingOpened, SegmentOpened


@dataclasses.dataclass(slots=True)
class Storage:
    """The storage of one master; all parts None: it keeps nothing."""

    history: History = dataclasses.field(default_factory=History)
    journal: Journal | None = None
    housekeeper: Housekeeper | None = None
    recorder: InputRecorder | None = None
    evidence: EvidenceStore | None = None

    def decider(self, core: Core) -> Decider:
        """The core as the loop is to use it: recorded, where that is wanted."""
        return core if self.recorder is None else RecordedCore(core, self.recorder)

    def after_batch(self, state: JobState, note: Note) -> None:
        """Compact where it is time; called between batches, on the loop's thread."""
        if self.housekeeper is not None and self.journal is not None:
            self.housekeeper.after_batch(self.journal, state, note)

    def close(self) -> None:
        """Write what waits; blocks."""
        if self.recorder is not None:
            self.recorder.close()
        if self.housekeeper is not None:
            self.housekeeper.wait(5.0)
        if self.journal is not None:
            self.journal.close()


def open_storage(config: MasterConfig) -> Storage:
    """Take this master's place in the journal, and read what earlier ones wrote.

    Raises:
        EpochRefusedError: another master has this epoch or a newer one.
        JournalError: the journal is a newer release's, another job's, or cannot be read.
    """
    directory = config.journal_dir
    if directory is None:
        return Storage()
    # The lock first: nobody else writes the segment that is read.
    journal = Journal(directory, config.epoch, config.incarnation)
    history = read_history(directory, config.job_uid, own_epoch=config.epoch)
    retention = Retention(
        seconds=config.journal_keep_hours * 3600.0, limit_bytes=config.journal_keep_bytes
    )
    housekeeper = Housekeeper(
        directory,
        config.journal_segment_bytes,
        retention,
        SegmentOpened(format=JOURNAL_FORMAT, **dataclasses.asdict(config.identity)),
        history.masters,
        history.tail_bytes,
    )
    evidence = EvidenceStore(directory / evidence_file.DIRECTORY, config.incarnation)
    return Storage(history, journal, housekeeper, _recorder(config), evidence)


def _recorder(config: MasterConfig) -> InputRecorder | None:
    if config.journal_dir is None or not config.recording_bytes:
        return None
    settings = json.dumps(dataclasses.asdict(config.core))
    identity = dataclasses.asdict(config.identity)
    head = RecordingOpened(format=RECORDING_FORMAT, settings=settings, **identity)
    return InputRecorder(config.journal_dir, head, config.recording_bytes)


log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Between two looks."""
PATIENCE_SECONDS = 1.0
"""A disk that does not answer for this long is not waited for."""


class JournalWatch:
    """Looks for the files of newer masters: beside one, this master is a zombie.

    Agents tell a zombie too, but only where they still reach it: one that was stopped while its
    successor got another address would wait for nodes that never come, and fail the job by itself.
    """

    def __init__(self, directory: Path, epoch: int) -> None:
        """Look at `directory` for epochs above `epoch`."""
        self._directory = directory
        self._epoch = epoch
        self._looking: asyncio.Task[None] | None = None
        self.newer = ""
        """The master that has begun, for people; empty: none."""

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
