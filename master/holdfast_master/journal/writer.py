"""The journal's writer: the files of this master's epoch, group commit, trouble survived.

A job must not stop because a disk does: what cannot be written is kept, bounded, and tried again
each second; the master goes on meanwhile, and says so. Then an effect may precede its record, and
a master that is restarted in this state learns from the agents what the journal does not hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast_master.journal import filesystem, framing
from holdfast_master.journal.segments import (
    EpochRefusedError,
    SegmentKind,
    epochs,
    listing,
    read_head,
    read_segment,
    segment_path,
)
from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, SegmentOpened

MAX_PENDING_BYTES = 8 * 1024 * 1024
"""Kept while the disk refuses; beyond this the journal of this epoch is given up. Default: days of
an ordinary job's records."""
SYNC_BYTES = 256 * 1024
"""Records that nobody waits for are synced at the latest when this much has gathered."""
RETRY_SECONDS = 1.0
"""Between two attempts at a disk that refused."""


class Journal:
    """Appends records to the segment of one epoch. Used by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        epoch: int,
        incarnation: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the segment of `epoch`; a disk that refuses to be written is tried again later.

        Raises:
            EpochRefusedError: the segment is another master's, or one of a newer epoch exists.
            JournalError: the segment is there and cannot be read.
        """
        self._path = _newest_part(directory, epoch)
        self._incarnation = incarnation
        self._clock = clock
        self._file: int | None = None
        self._durable_bytes = 0
        self._pending = bytearray()
        self._written = 0
        self._retry_at = 0.0
        self.trouble = ""
        """Why records are not on disk now, for people; empty: the records are on disk."""
        self._abandoned = False
        self._newest_record = b""
        self._rotation_asked = False
        self.rotation_trouble = ""
        """Why the last new file could not be begun, for people; empty: it was begun."""
        self.bytes_written = 0
        """Of all records that this process has handed in so far."""
        self._refuse_newer(epoch)
        if self._path.exists():
            # Also where nothing can be written: a lost race is better found late than never.
            self._check_owner()
        with self._noting_trouble():
            self._take()

    def ask_rotation(self) -> None:
        """Begin a new file with the next commit. May be called from another thread."""
        self._rotation_asked = True

    def commit(self, records: Sequence[bytes], *, durable: bool) -> None:
        """Append `records` in one write, and sync where one of them is `durable`.

        Returns also when the disk refuses: see `trouble`. Called with no records it tries again
        what is pending.
        """
        if self._abandoned:
            return
        if self._rotation_asked and not self.trouble and self._file is not None:
            self._rotate(self._file)
        framed = b"".join(map(framing.frame, records))
        self.bytes_written += len(framed)
        self._pending += framed
        self._newest_record = records[-1] if records else self._newest_record
        if self.trouble and self._clock() < self._retry_at:
            self._give_up_beyond_bound()
            return
        with self._noting_trouble():
            file = self._take() if self._file is None else self._file
            self._write(file)
            if durable or self.trouble or self._written >= SYNC_BYTES:
                self._sync(file)
            self.trouble = ""

    def _rotate(self, file: int) -> None:
        # The old file goes on being written when this fails: nothing depends on the new one.
        self._rotation_asked = False
        with self._noting_trouble():
            self._sync(file)
        if self.trouble or not self._newest_record:
            return
        try:
            path, new = self._begin_part()
        except OSError as error:
            self.rotation_trouble = (
                f"journal {self._path.parent}: {error.strerror}: no new file can be begun, "
                f"{self._path.name} goes on: make room"
            )
            return
        self.rotation_trouble = ""
        os.close(file)
        self._path, self._file = path, new
        self._durable_bytes = os.fstat(new).st_size

    def _begin_part(self) -> tuple[Path, int]:
        newest = codec.decode(JournalRecord, self._newest_record)
        head = _next_head(self._path, newest)
        path = segment_path(self._path.parent, head.epoch, head.part)
        temporary = path.with_name(f".{path.name}")
        record = JournalRecord(
            sequence=newest.sequence,
            unix_time=newest.unix_time,
            job_seconds=newest.job_seconds,
            fact=head,
        )
        file = filesystem.create(temporary)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            filesystem.write(file, framing.frame(codec.encode(record)))
            filesystem.sync(file)
            filesystem.rename(temporary, path)
            filesystem.sync_directory(path.parent)
        except BaseException:
            os.close(file)
            raise
        return path, file

    def close(self) -> None:
        """Write and sync the pending records, then close the file."""
        self.commit([], durable=True)
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._abandoned = True

    @contextlib.contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.trouble = f"journal {self._path}: {error.strerror} ({type(error).__name__})"
            self._retry_at = self._clock() + RETRY_SECONDS
            self._cut_back()
            self._give_up_beyond_bound()

    def _refuse_newer(self, epoch: int) -> None:
        newest = max(epochs(self._path.parent), default=0)
        if newest > epoch:
            raise EpochRefusedError(
                f"{self._path.parent} has a segment of epoch {newest}, this master has epoch "
                f"{epoch}; a newer master exists or existed: start with a newer epoch"
            )

    def _take(self) -> int:
        directory = self._path.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock(file)
            end = self._check_owner()
            os.ftruncate(file, end)
            filesystem.sync_directory(directory)
        except BaseException:
            os.close(file)
            raise
        self._file, self._durable_bytes = file, end
        return file

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EpochRefusedError(
                f"{self._path} is being written by another master of the same epoch; "
                "give each master process its own epoch"
            ) from error

    def _check_owner(self) -> int:
        segment = read_segment(self._path)
        opened = segment.opened
        if opened is not None and opened.incarnation != self._incarnation:
            raise EpochRefusedError(
                f"{self._path} was written by the master {opened.incarnation}, this one is "
                f"{self._incarnation}; give each master process its own epoch"
            )
        return segment.intact_bytes

    def _write(self, file: int) -> None:
        view = memoryview(self._pending)
        with view, view[self._written :] as rest:
            offset, done = self._durable_bytes + self._written, 0
            while done < len(rest):
                done += os.pwrite(file, rest[done:], offset + done)
        self._written = len(self._pending)

    def _sync(self, file: int) -> None:
        try:
            os.fdatasync(file)
        except OSError:
            # After a failed sync the kernel may have dropped the pages: write them all anew.
            self._written = 0
            raise
        self._durable_bytes += self._written
        self._pending.clear()
        self._written = 0

    def _cut_back(self) -> None:
        # Half a frame must not stay behind: the next write begins where the last good one ended.
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._durable_bytes + self._written)

    def _give_up_beyond_bound(self) -> None:
        if self.trouble and len(self._pending) > MAX_PENDING_BYTES:
            self._abandoned = True
            self._pending.clear()
            self._written = 0
            self.trouble += f"; more than {MAX_PENDING_BYTES} bytes are waiting: given up"


def _newest_part(directory: Path, epoch: int) -> Path:
    """The path that the epoch's records go to: the newest file, or the first one to be."""
    names = [n for n in listing(directory) if n.kind is SegmentKind.FACTS and n.epoch == epoch]
    return names[-1].path if names else segment_path(directory, epoch)


def _next_head(path: Path, newest: JournalRecord) -> SegmentOpened:
    """The head of the file after `path`.

    Raises:
        OSError: the file at `path` has no intact head to go on from.
    """
    record = newest if isinstance(newest.fact, SegmentOpened) else read_head(path)
    opened = record.fact if record is not None else None
    if not isinstance(opened, SegmentOpened):
        raise OSError(5, f"{path.name} has lost its head")
    return dataclasses.replace(opened, part=opened.part + 1)
