"""The master's journal on a disk that can be slow, full, torn or gone.

Belongs here: which records survive which death. Does not belong here: the real files and frames
(`holdfast_master.journal.writer`, tested on real disks); segments are joined by the real
`history.join`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from holdfast_master.instructions import Record
from holdfast_master.journal.reader import join
from holdfast_master.journal.segments import Segment
from holdfast_wire.messages import JournalRecord


@dataclasses.dataclass(eq=False)
class Written:
    """The segment of one master."""

    epoch: int
    records: list[Record] = dataclasses.field(default_factory=list)
    synced: int = 0
    """Records of it that a power cut spares."""
    pending: list[Record] = dataclasses.field(default_factory=list)
    """Kept in the master's memory because the disk refuses."""


class Disk:
    """All segments of a job; every master of the job writes its own."""

    def __init__(self) -> None:
        self.segments: list[Written] = []
        self.latency = 0.0
        """Of a durable write, s."""
        self.full = False

    def open(self, epoch: int) -> Written:
        """A new master's segment."""
        segment = Written(epoch)
        self.segments.append(segment)
        return segment

    def append(self, segment: Written, records: Sequence[Record], *, durable: bool) -> bool:
        """Write records; returns whether the disk took them."""
        if self.full:
            segment.pending += records
            return False
        if segment.pending:
            segment.records += segment.pending
            segment.pending.clear()
            durable = True
        segment.records += records
        if durable:
            segment.synced = len(segment.records)
        return True

    def tear(self, segment: Written, lost: int) -> None:
        """The machine of the master died: up to `lost` records that were not synced are gone."""
        keep = max(segment.synced, len(segment.records) - lost)
        del segment.records[keep:]

    def lose(self) -> None:
        """The disk is gone with its machine."""
        self.segments.clear()

    def read(self, job_uid: str) -> tuple[JournalRecord, ...]:
        """Return the records that a new master reads, joined by the real rules."""
        segments = []
        for number, written in enumerate(sorted(self.segments, key=lambda item: item.epoch)):
            records = tuple(record.journal() for record in written.records)
            path = Path(f"journal-{number}.log")
            segments.append(Segment(path, written.epoch, records, len(records)))
        return join(segments, job_uid).records
