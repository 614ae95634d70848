"""The zip archive that `torch.save` writes: where its records lie, and whether they are damaged.

torch itself ignores the archive's checksums; here each byte that is used was compared with them.
Does not belong here: the meaning of the pickle in it (`pickles`).
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Final

from holdfast.flash.tools.formats.foreign import ForeignError

_CHUNK: Final = 2**24
"""Bytes read at once."""
_HEADER: Final = struct.Struct("<4s22xHH")
"""Signature, and the lengths of name and extra field, of a record's local header."""
SIGNATURE: Final = b"PK\x03\x04"
"""With which a record begins, and so an archive."""


class Section(io.RawIOBase):
    """A range of a file, as a file."""

    def __init__(self, path: str, begin: int = 0, length: int | None = None) -> None:
        """Open the range; raises OSError, `ForeignError` if the file is shorter."""
        self._handle = -1
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(self._handle).st_size
        self._begin, self._at = begin, 0
        self.length = size - begin if length is None else length
        if begin < 0 or self.length < 0 or begin + self.length > size:
            raise ForeignError(f"{path}: {size} bytes, not the {begin + self.length} that are due")

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, as a file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError(f"seek before the begin: {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read at the position, as a file."""
        view = memoryview(buffer)[: max(0, self.length - self._at)]
        done = os.preadv(self._handle, [view], self._begin + self._at) if view else 0
        self._at += done
        return done

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0 and not self.closed:
            os.close(self._handle)
        super().close()


@dataclass(frozen=True, slots=True)
class Record:
    """A record's bytes in the section."""

    at: int
    size: int
    crc: int


class TorchZip:
    """The records of one archive."""

    def __init__(self, path: str, begin: int = 0, length: int | None = None) -> None:
        """List the records; raises `ForeignError` if the archive is damaged, OSError."""
        self.path = path
        self._span = (begin, length)
        self._compared = set[str]()
        try:
            with Section(path, begin, length) as section:
                self.records = _records(section)
        except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError) as error:
            raise ForeignError(
                f"{path}: no whole archive of torch.save ({error}). Copy the file again; one of "
                "torch before 1.6 must be loaded and saved by a newer torch"
            ) from error

    def has(self, name: str) -> bool:
        """Tell whether there is a record."""
        return name in self.records

    def read(
        self, name: str, begin: int = 0, size: int | None = None, *, checked: bool = True
    ) -> bytearray:
        """Return bytes of a record, after all of it was compared with its checksum.

        checked: False for a look at bytes that are read once more. Raises `ForeignError` naming
        file and record.
        """
        record = self.records.get(name)
        if record is None:
            raise ForeignError(f"{self.path}: the record {name} is missing: copy the file again")
        wanted = record.size - begin if size is None else size
        if begin < 0 or wanted < 0 or begin + wanted > record.size:
            raise ForeignError(
                f"{self.path}: {name} has {record.size} bytes, not the {begin + wanted} of a tensor"
            )
        with Section(self.path, *self._span) as section:
            if name in self._compared or not checked:
                return _take(section, record, begin, wanted)
            found = _compare(section, record, begin, wanted)
        if found is None:
            raise ForeignError(f"{self.path}: {name} differs from its checksum: it is damaged")
        self._compared.add(name)
        return found


def _take(section: Section, record: Record, begin: int, size: int) -> bytearray:
    body = bytearray(size)
    section.seek(record.at + begin)
    view, done = memoryview(body), 0
    while done < size and (more := section.readinto(view[done:])):
        done += more
    return body


def _compare(section: Section, record: Record, begin: int, size: int) -> bytearray | None:
    """Return a range of a record; None if the record differs from its checksum."""
    body, piece = bytearray(size), memoryview(bytearray(min(_CHUNK, max(record.size, 1))))
    crc, at = 0, 0
    section.seek(record.at)
    while at < record.size:
        done = section.readinto(piece[: min(len(piece), record.size - at)])
        if not done:
            return None
        crc = zlib.crc32(piece[:done], crc)
        first, last = max(at, begin), min(at + done, begin + size)
        if first < last:
            body[first - begin : last - begin] = piece[first - at : last - at]
        at += done
    return body if crc == record.crc else None


def _records(section: Section) -> dict[str, Record]:
    """Return the records by their names without the archive's folder."""
    found: dict[str, Record] = {}
    with zipfile.ZipFile(section) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise zipfile.BadZipFile(f"{info.filename} is compressed")
            name = info.filename.partition("/")[2]
            if name in found:
                raise zipfile.BadZipFile(f"{info.filename} is there twice")
            at = _begin(section, info)
            found[name] = Record(at, info.file_size, info.CRC)
    if "data.pkl" not in found:
        raise zipfile.BadZipFile("there is no data.pkl in it")
    return found


def _begin(section: Section, info: zipfile.ZipInfo) -> int:
    """Return where a record's bytes begin; raises if its two headers differ."""
    section.seek(info.header_offset)
    header = section.read(_HEADER.size) or b""
    signature, length, extra = _HEADER.unpack(header)
    name = section.read(length) or b""
    if signature != SIGNATURE or name != info.orig_filename.encode():
        raise zipfile.BadZipFile(f"{info.filename} has another name at its place")
    return info.header_offset + _HEADER.size + int(length) + int(extra)
