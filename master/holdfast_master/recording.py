"""Recording of what the core is told, beside the journal, so that it can be decided again.

Belongs here: the core that records, and the thread that writes. Does not belong here: the format
(see `recording_files`), deciding again (see `redeciding`).

Nothing waits for it: the loop puts a tuple in a queue; encoding, deflating and writing happen in a
thread. What a crash of this process takes with it is the last half second.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import logging
import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast_master import durable_files
from holdfast_master.inputs import Input, Moment, Received
from holdfast_master.instructions import Instruction, Record
from holdfast_master.job import papers
from holdfast_master.recorded_inputs import to_message
from holdfast_master.recording_files import (
    block_of,
    head_of,
    recording_path,
    recording_paths,
)
from holdfast_wire import codec
from holdfast_wire.messages import InputRecorded, RecordingOpened

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""What is told within this is written together."""
QUEUE_LIMIT = 50_000
"""Inputs that wait for the thread; beyond this the rest of the file is left out."""
PARTS = 8
"""Files that a recording consists of: the oldest one goes when the bound is met."""
MOST_NODES = 2_000
"""Papers of larger jobs take too long to copy (0.1 s for these): then only the beginning of a
master is recorded, up to the bound."""

Told = tuple[Input, Moment, int, int, bool]
"""An input, when it was handled, the newest record then, instructions, whether the core failed."""


class PapersKeeper(Protocol):
    """What recording needs of a core beside its decisions."""

    def open(self, now: Moment) -> list[Instruction]:
        """Return the first batch."""

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """Return the batch that one input leads to."""

    def next_deadline(self) -> float | None:
        """Return when a Ticked is due."""

    def newest_record(self) -> int:
        """Return the sequence of the newest record."""

    def papers(self, most_nodes: int) -> dict[str, Any] | None:
        """Return what the core knows beside the journal."""


class RecordedCore:
    """A core whose inputs are recorded; decides exactly as the core inside."""

    def __init__(self, core: PapersKeeper, recorder: InputRecorder) -> None:
        self._core = core
        self._recorder = recorder

    def open(self, now: Moment) -> list[Instruction]:
        """Return the first batch; the recording begins with it."""
        self._recorder.begin(now, self._core.newest_record(), None)
        return self._core.open(now)

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """Return the batch that one input leads to."""
        core, recorder = self._core, self._recorder
        if recorder.wants_part:
            self._begin_part(now)
        try:
            batch = core.handle(event, now)
        except Exception:
            recorder.note((event, now, core.newest_record(), 0, True))
            raise
        others = 0
        for item in batch:
            if not isinstance(item, Record):
                others += 1
        recorder.note((event, now, core.newest_record(), others, False))
        return batch

    def _begin_part(self, now: Moment) -> None:
        try:
            kept = self._core.papers(MOST_NODES)
        except papers.PapersError as error:
            # Whatever is wrong with a recording, the job's decisions are made.
            self._recorder.stop(str(error))
            return
        self._recorder.begin(now, self._core.newest_record(), kept)

    def next_deadline(self) -> float | None:
        """Return when a Ticked is due."""
        return self._core.next_deadline()


@dataclasses.dataclass(frozen=True, slots=True)
class _Begin:
    opened: RecordingOpened
    kept: dict[str, Any] | None


class InputRecorder:
    """Writes the inputs of one master; `begin` and `note` are for the loop's thread."""

    def __init__(self, directory: Path, head: RecordingOpened, limit_bytes: int) -> None:
        """Prepare; the thread starts with the first file.

        Args:
            directory: of the journal.
            head: what every file of this master begins with.
            limit_bytes: most that the recordings of the directory may take.
        """
        self._directory = directory
        self._head = head
        self._limit = limit_bytes
        self._queue: collections.deque[_Begin | Told] = collections.deque()
        self._wake = threading.Event()
        self._closed = False
        self._part = -1
        self._file: int | None = None
        self._size = 0
        self._head_bytes = 0
        self._thread: threading.Thread | None = None
        self.wants_part = False
        """The next input should begin a new file."""
        self.trouble = ""
        """Why nothing is recorded, for people; empty: it is."""

    def begin(self, now: Moment, sequence: int, kept: dict[str, Any] | None) -> None:
        """Begin a file: at the master's beginning, or with the core's papers."""
        self.wants_part = False
        self._part += 1
        if self._part and kept is None:
            self.stop("the job has too many nodes for a later part")
            return
        opened = dataclasses.replace(
            self._head,
            part=self._part,
            mono=now.mono,
            unix_time=now.unix,
            sequence=sequence,
        )
        self._queue.append(_Begin(opened, kept))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
            self._thread.start()

    def note(self, told: Told) -> None:
        """Take one input; costs an append."""
        if not self.trouble:
            self._queue.append(told)

    def close(self, seconds: float = 5.0) -> None:
        """Write what waits, for at most this long."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self, why: str) -> None:
        """Record nothing any more, and say why."""
        self.wants_part = False
        if not self.trouble:
            log.warning("inputs are not recorded any more: %s", why)
        self.trouble = why
        self._queue.clear()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(FLUSH_SECONDS)
            self._write_waiting()
        self._write_waiting()
        self._end_file()

    def _write_waiting(self) -> None:
        if len(self._queue) > QUEUE_LIMIT:
            # The disk does not keep up: the file ends here, a new one begins when one can.
            self._queue.clear()
            self._end_file()
            self.wants_part = True
        waiting = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            self._write_all(waiting)
        except (OSError, papers.PapersError) as error:
            self._end_file()
            self.stop(str(error))

    def _write_all(self, waiting: Sequence[_Begin | Told]) -> None:
        told: list[Told] = []
        for item in waiting:
            if isinstance(item, _Begin):
                self._append(told)
                told = []
                self._begin_file(item)
            else:
                told.append(item)
        self._append(told)

    def _append(self, told: Iterable[Told]) -> None:
        inputs = [encode(item) for item in told]
        if inputs and self._file is not None:
            self._write(block_of(inputs))
            if self._size > max(self._limit // PARTS, 4 * self._head_bytes):
                self.wants_part = True

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            durable_files.write(self._file, data)
            self._size += len(data)

    def _begin_file(self, begin: _Begin) -> None:
        self._end_file()
        self._make_room()
        opened = begin.opened
        if begin.kept is not None:
            text = json.dumps(begin.kept, default=papers.finish, separators=(",", ":"))
            opened = dataclasses.replace(opened, papers=zlib.compress(text.encode(), 1))
        self._file = durable_files.create(
            recording_path(self._directory, opened.epoch, opened.part)
        )
        self._write(head_of(opened))
        self._head_bytes = self._size

    def _end_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = None, 0

    def _make_room(self) -> None:
        paths = [path for path in recording_paths(self._directory) if path.exists()]
        sizes = [path.stat().st_size for path in paths]
        while paths and sum(sizes) > self._limit - 2 * (self._limit // PARTS):
            durable_files.remove(paths.pop(0))
            sizes.pop(0)


def encode(told: Told) -> bytes:
    """Return an input as its InputRecorded."""
    event, now, sequence, instructions, failed = told
    if isinstance(event, Received) and event.raw and not failed:
        moment = (now.mono, now.unix)
        return codec.encode_said(moment, sequence, instructions, event.session, event.raw)
    recorded = InputRecorded(
        mono=now.mono,
        unix_time=now.unix,
        sequence=sequence,
        instructions=instructions,
        failed=failed,
        input=to_message(event),
    )
    return codec.encode(recorded)
