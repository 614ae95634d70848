"""Files of recorded inputs: their names, their blocks, and reading them.

A file is frames as in a journal: a RecordingOpened, then blocks. A block is deflated frames, each
with one InputRecorded. Nothing of it is synced: a recording explains, it is not relied upon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast_master.journal import filesystem, framing
from holdfast_master.journal.segments import JournalError
from holdfast_wire import codec
from holdfast_wire.messages import InputRecorded, RecordingOpened

FORMAT = 3
"""`RecordingOpened.format` that this release writes and reads."""
_NAME = re.compile(r"inputs-([1-9]\d*)\.rec")
_LEVEL = 1
"""Of deflate: heartbeats are much alike, and more effort gains little."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """One file of inputs."""

    path: Path
    opened: RecordingOpened
    blocks: tuple[bytes, ...]
    broken: str = ""
    """The fault behind the intact blocks; empty: none."""

    def inputs(self) -> Iterator[InputRecorded]:
        """The inputs, oldest first, as far as they can be read."""
        for block in self.blocks:
            try:
                yield from _inputs_of(block)
            except (zlib.error, codec.WireError):
                return

    @property
    def newest(self) -> int:
        """Sequence of the newest record once the last input was handled."""
        sequence = self.opened.sequence
        with contextlib.suppress(zlib.error, codec.WireError):
            for recorded in _inputs_of(self.blocks[-1]) if self.blocks else ():
                sequence = max(sequence, recorded.sequence)
        return sequence


def _inputs_of(block: bytes) -> Iterator[InputRecorded]:
    for record in framing.scan(zlib.decompress(block)).records:
        yield codec.decode(InputRecorded, record)


def recording_path(directory: Path, epoch: int) -> Path:
    """The file with the inputs of the master of `epoch`."""
    return directory / f"inputs-{epoch}.rec"


def is_unbegun(path: Path) -> bool:
    """Whether the master was killed between the file's creation and its first write."""
    return path.is_file() and not path.stat().st_size


def recording_paths(directory: Path) -> tuple[Path, ...]:
    """The files of inputs in `directory`, oldest first.

    Raises:
        JournalError: the directory cannot be read.
    """
    try:
        matches = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalError(f"journal {directory} cannot be read: {error.strerror}") from error
    found = [(int(match[1]), path) for match, path in matches if match]
    return tuple(path for _, path in sorted(found))


def head_of(opened: RecordingOpened) -> bytes:
    """Return how a file begins."""
    return framing.frame(codec.encode(opened))


def block_of(inputs: Iterable[bytes]) -> bytes:
    """Return encoded inputs as they are appended to a file."""
    return framing.frame(zlib.compress(b"".join(map(framing.frame, inputs)), _LEVEL))


def read_opened(path: Path) -> RecordingOpened | None:
    """A file's head without its inputs; None where it is not intact.

    Raises:
        FileNotFoundError: it has been removed.
        JournalError: see `read_recording`.
    """
    with _readable(path) as file:
        first = framing.read_first(file)
    return None if first is None else _opened(path, first)


def read_recording(path: Path) -> Recording | None:
    """The file at `path`; None where not even its head is intact.

    Raises:
        FileNotFoundError: it has been removed.
        JournalError: it cannot be read, or is of a newer release.
    """
    with _readable(path) as file:
        data = file.read()
    scan = framing.scan(data)
    opened = _opened(path, scan.records[0]) if scan.records else None
    if opened is None:
        return None
    broken = "" if scan.damage is None else f"{path.name} is damaged at byte {scan.intact_bytes}"
    return Recording(path, opened, scan.records[1:], broken)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    try:
        with filesystem.open_plain(path) as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JournalError(f"recording {path} cannot be read: {error.strerror}") from error


def _opened(path: Path, first: bytes) -> RecordingOpened | None:
    try:
        opened = codec.decode(RecordingOpened, first)
    except codec.WireError:
        return None
    if opened.format != FORMAT:
        raise JournalError(
            f"{path} has format {opened.format}, written by holdfast {opened.version}; this "
            f"release reads format {FORMAT}: use that release"
        )
    return opened
