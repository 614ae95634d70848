"""Frames of a journal segment: where each record begins, ends, and whether it is intact.

A frame is 12 bytes and the record: a mark, the record's length and a CRC-32 over length and
record, both little-endian. The mark only serves to find out whether anything intact follows damage.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import zlib
from typing import BinaryIO

MARK = b"HfJ\x01"
"""Begins each frame; its last byte is the version of the framing."""
_HEAD = struct.Struct("<4sII")
HEAD_BYTES = _HEAD.size
"""Of a frame that are not the record."""
_LENGTH = struct.Struct("<I")
MAX_RECORD_BYTES = 16 * 1024 * 1024
"""No record is longer: a larger length is damage, and is never allocated."""


class Damage(enum.Enum):
    """The damage of a segment."""

    TORN = "torn"
    """The last frame is not intact and nothing intact follows: as a rule the writer was stopped in
    the middle of it, and then nothing that was promised to be on disk is lost."""
    CORRUPT = "corrupt"
    """A frame is damaged and intact ones follow: the disk or a hand changed it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    """The content of a segment's bytes: the intact records, and the damage."""

    records: tuple[bytes, ...]
    """Intact records before any damage, oldest first."""
    intact_bytes: int
    """Length of the part that holds them; a writer goes on from here."""
    damage: Damage | None = None
    lost_records: int = 0
    """Intact records behind the damage, which cannot be used."""


def frame(record: bytes) -> bytes:
    """Return `record` as a frame."""
    length = _LENGTH.pack(len(record))
    return _HEAD.pack(MARK, len(record), zlib.crc32(record, zlib.crc32(length))) + record


def scan(data: bytes) -> Scan:
    """The intact records at the beginning of `data`, and the damage after them."""
    records, end = _read_frames(data, 0)
    if end == len(data):
        return Scan(tuple(records), end)
    behind = _count_behind(data, end + 1)
    return Scan(tuple(records), end, Damage.CORRUPT if behind else Damage.TORN, behind)


def read_first(file: BinaryIO) -> bytes | None:
    """The record at the beginning of `file` without reading the rest of the file."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    _, length, _ = _HEAD.unpack(head)
    return _frame_at(head + file.read(min(length, MAX_RECORD_BYTES)), 0)


def _read_frames(data: bytes, start: int) -> tuple[list[bytes], int]:
    records: list[bytes] = []
    position = start
    while (record := _frame_at(data, position)) is not None:
        records.append(record)
        position += _HEAD.size + len(record)
    return records, position


def _frame_at(data: bytes, position: int) -> bytes | None:
    begin = position + _HEAD.size
    if begin > len(data):
        return None
    mark, length, checksum = _HEAD.unpack_from(data, position)
    if mark != MARK or length > MAX_RECORD_BYTES or begin + length > len(data):
        return None
    record = data[begin : begin + length]
    intact = zlib.crc32(record, zlib.crc32(_LENGTH.pack(length))) == checksum
    return record if intact else None


def _count_behind(data: bytes, start: int) -> int:
    count, position = 0, data.find(MARK, start)
    while position >= 0:
        records, end = _read_frames(data, position)
        count += len(records)
        position = data.find(MARK, max(end, position + 1))
    return count
