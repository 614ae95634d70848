"""Everything that a master keeps on disk about its job: journal, bases, recording.

Belongs here: putting the three together from the configuration. Does not belong here: any of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from holdfast_master.compaction import Retention
from holdfast_master.config import MasterConfig
from holdfast_master.history import History, read_history
from holdfast_master.housekeeping import Habits, Housekeeper, Note
from holdfast_master.job.state import JobState
from holdfast_master.journal import Journal
from holdfast_master.ports import Decider
from holdfast_master.recording import InputRecorder, PapersKeeper, RecordedCore
from holdfast_master.recording_files import FORMAT as RECORDING_FORMAT
from holdfast_master.segments import FORMAT
from holdfast_wire import __version__
from holdfast_wire.messages import RecordingOpened, SegmentOpened


@dataclasses.dataclass(slots=True)
class Books:
    """The books of one master; all parts None: it keeps none."""

    history: History = dataclasses.field(default_factory=History)
    journal: Journal | None = None
    housekeeper: Housekeeper | None = None
    recorder: InputRecorder | None = None

    def decider(self, core: PapersKeeper) -> Decider:
        """Return the core as the loop is to use it: recorded, where that is wanted."""
        return core if self.recorder is None else RecordedCore(core, self.recorder)

    def after_batch(self, state: Callable[[], JobState], note: Note) -> None:
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


def open_books(config: MasterConfig) -> Books:
    """Take this master's place in the journal, and read what earlier ones wrote.

    Raises:
        EpochRefusedError: another master has this epoch or a newer one.
        JournalError: the journal is a newer release's, another job's, or cannot be read.
    """
    directory = config.journal_dir
    if directory is None:
        return Books()
    # The lock first: nobody else writes the segment that is read.
    journal = Journal(directory, config.epoch, config.incarnation)
    history = read_history(directory, config.job_uid, own_epoch=config.epoch)
    habits = Habits(
        directory=directory,
        segment_bytes=config.journal_segment_bytes,
        retention=Retention(
            seconds=config.journal_keep_hours * 3600.0, limit_bytes=config.journal_keep_bytes
        ),
    )
    housekeeper = Housekeeper(habits, _head(config), history.masters, history.tail_bytes)
    return Books(history, journal, housekeeper, _recorder(config))


def _head(config: MasterConfig) -> SegmentOpened:
    return SegmentOpened(
        format=FORMAT,
        epoch=config.epoch,
        incarnation=config.incarnation,
        job_name=config.job_name,
        job_uid=config.job_uid,
        version=__version__,
    )


def _recorder(config: MasterConfig) -> InputRecorder | None:
    if config.journal_dir is None or not config.recording_bytes:
        return None
    head = RecordingOpened(
        format=RECORDING_FORMAT,
        epoch=config.epoch,
        incarnation=config.incarnation,
        job_name=config.job_name,
        job_uid=config.job_uid,
        version=__version__,
        settings=json.dumps(dataclasses.asdict(config.core)),
    )
    return InputRecorder(config.journal_dir, head, config.recording_bytes)
