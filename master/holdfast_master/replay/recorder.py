"""Recording of the core's inputs beside the journal, so that they can be decided again.

A recording begins with its master and ends when its bound is met. Nothing waits for it: the loop
puts a tuple in a queue; a thread encodes, deflates and writes. A crash of this process loses the
last half second.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import threading
from pathlib import Path

from holdfast_master.core import Core
from holdfast_master.inputs import Input, Moment, Received
from holdfast_master.instructions import Instruction, Record
from holdfast_master.journal import filesystem
from holdfast_master.replay.codec import to_message
from holdfast_master.replay.files import block_of, head_of, recording_path, recording_paths
from holdfast_wire import codec
from holdfast_wire.messages import InputRecorded, RecordingOpened

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""Inputs of this time are written together."""
QUEUE_LIMIT = 50_000
"""Inputs that may wait for the thread; with more the recording ends."""

HandledInput = tuple[Input, Moment, int, int, bool]
"""An input, when it was handled, the newest record then, instructions, whether the core failed."""


class RecordedCore:
    """A core whose inputs are recorded; decides exactly as the core inside."""

    def __init__(self, core: Core, recorder: InputRecorder) -> None:
        self._core = core
        self._recorder = recorder

    def open(self, now: Moment) -> list[Instruction]:
        """The first batch; the recording begins with it."""
        self._recorder.begin(now, self._core.job.state.sequence)
        return self._core.open(now)

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """The batch that one input leads to."""
        core, recorder = self._core, self._recorder
        try:
            batch = core.handle(event, now)
        except Exception:
            recorder.note((event, now, core.job.state.sequence, 0, True))
            raise
        others = sum(not isinstance(item, Record) for item in batch)
        recorder.note((event, now, core.job.state.sequence, others, False))
        return batch

    def next_deadline(self) -> float | None:
        """Return when a Ticked is due."""
        return self._core.next_deadline()

    def reasons(self) -> tuple[str, ...]:
        """Return why the newest call looked at the decisions again."""
        return self._core.reasons()


class InputRecorder:
    """Writes the inputs of one master; `begin` and `note` are for the loop's thread."""

    def __init__(self, directory: Path, head: RecordingOpened, limit_bytes: int) -> None:
        """Prepare; the thread starts with `begin`.

        limit_bytes: most that all recordings of the directory may take.
        """
        self._directory = directory
        self._head = head
        self._limit = limit_bytes
        self._queue: collections.deque[HandledInput] = collections.deque()
        self._wake = threading.Event()
        self._closed = False
        self._file: int | None = None
        self._room = 0
        self._thread: threading.Thread | None = None
        self.trouble = ""
        """Why nothing is recorded, for people; empty: it is."""

    def begin(self, now: Moment, sequence: int) -> None:
        """Begin the recording before the core is opened; `sequence` is the newest record's."""
        self._head = dataclasses.replace(
            self._head, mono=now.mono, unix_time=now.unix, sequence=sequence
        )
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def note(self, handled: HandledInput) -> None:
        """Take one input; costs an append."""
        if not self.trouble:
            self._queue.append(handled)

    def close(self, seconds: float = 5.0) -> None:
        """Write the inputs that wait, for at most this long."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(FLUSH_SECONDS)
            self._write_waiting()
        self._write_waiting()
        self._end_file()

    def _stop(self, why: str) -> None:
        log.warning("inputs are not recorded any more: %s", why)
        self.trouble = why
        self._queue.clear()
        self._end_file()

    def _write_waiting(self) -> None:
        if self.trouble:
            self._queue.clear()
            return
        if len(self._queue) > QUEUE_LIMIT:
            self._stop(f"the disk does not keep up: more than {QUEUE_LIMIT} inputs wait")
            return
        handled = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            if self._file is None:
                self._begin_file()
            if handled:
                self._write(block_of(encode(item) for item in handled))
        except OSError as error:
            self._stop(str(error))

    def _begin_file(self) -> None:
        self._room = self._limit - self._make_room()
        self._file = filesystem.create(recording_path(self._directory, self._head.epoch))
        self._write(head_of(self._head))

    def _write(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self._stop(f"recording_bytes is {self._limit}, which is used up; a larger one lasts on")
        elif self._file is not None:
            filesystem.write(self._file, data)

    def _end_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _make_room(self) -> int:
        """Remove the oldest recordings until half of the bound is free; return the others' size."""
        paths = list(recording_paths(self._directory))
        sizes = [path.lstat().st_size for path in paths]
        while paths and sum(sizes) > self._limit // 2:
            filesystem.remove(paths.pop(0))
            sizes.pop(0)
        return sum(sizes)


def encode(handled: HandledInput) -> bytes:
    """An input as its InputRecorded."""
    event, now, sequence, instructions, failed = handled
    if isinstance(event, Received) and event.raw and not failed:
        moment = (now.mono, now.unix)
        return codec.encode_received(moment, sequence, instructions, event.session, event.raw)
    recorded = InputRecorded(
        mono=now.mono,
        unix_time=now.unix,
        sequence=sequence,
        instructions=instructions,
        failed=failed,
        input=to_message(event),
    )
    return codec.encode(recorded)
