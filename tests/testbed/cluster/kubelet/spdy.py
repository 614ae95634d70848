"""SPDY/3.1 frames, as kubectl and Go's spdystream exchange them. Bytes here, no socket.

Not here, as not there: windows. spdystream announces no room and heeds no announcement, so a sender
that kept to the initial window of 64 KiB would wait for ever. TCP holds a fast sender back.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

_VERSION: Final = 3
_CONTROL: Final = 0x8000
_STREAM_BITS: Final = 0x7FFFFFFF
_LENGTH_BITS: Final = 0xFFFFFF
_FIN: Final = 1
_HEAD_BYTES: Final = 8
_LONGEST_CONTROL: Final = 1 << 16
"""Bytes of a control frame, and of its headers unpacked: theirs have some hundred."""
PROTOCOL_ERROR: Final = 1
"""Status of RstStream and of GoAway."""
REFUSED_STREAM: Final = 3
"""Status of RstStream."""

_WORDS: Final = b"""
options head post put delete trace accept accept-charset accept-encoding accept-language
accept-ranges age allow authorization cache-control connection content-base content-encoding
content-language content-length content-location content-md5 content-range content-type date etag
expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since
last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer
retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_REST: Final = (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    b"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
    b"401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
    b"503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 "
    b"Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    b"application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
    b"gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


DICTIONARY: Final = b"".join(_text(word.replace(b"_", b" ")) for word in _WORDS.split()) + _REST
"""What both sides' zlib has seen before the first header: section 2.6.10.1 of the standard."""


class _Kind(enum.IntEnum):
    """Types of the control frames that mean something here."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    PING = 6
    GOAWAY = 7
    HEADERS = 8


class SpdyError(RuntimeError):
    """The other side sent what is no frame; the connection cannot go on."""


@dataclasses.dataclass(frozen=True, slots=True)
class SynStream:
    """A stream begins."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SynReply:
    """The other side has taken a stream."""

    stream: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RstStream:
    """A stream is over in both directions."""

    stream: int
    status: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """Wants to come back; odd numbers are the client's."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class GoAway:
    """The connection ends."""

    last_stream: int
    status: int


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream; `fin`: the last ones in this direction."""

    stream: int
    data: bytes = b""
    fin: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Unheeded:
    """A control frame that changes nothing here: SETTINGS, WINDOW_UPDATE, HEADERS, unknown ones."""

    kind: int


Frame = SynStream | SynReply | RstStream | Ping | GoAway | Data | Unheeded


class Framer:
    """Both directions of one connection: each has one zlib stream for the headers of its life."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(zdict=DICTIONARY)
        self._unpacker = zlib.decompressobj(zdict=DICTIONARY)
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with these bytes; raises SpdyError."""
        self._rest += data
        while len(self._rest) >= _HEAD_BYTES:
            first, second = struct.unpack_from(">II", self._rest)
            end = _HEAD_BYTES + (second & _LENGTH_BITS)
            is_control, flags = first > _STREAM_BITS, second >> 24
            if is_control and end > _LONGEST_CONTROL:
                raise SpdyError(f"a control frame of {end} bytes")
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_HEAD_BYTES:end])
            del self._rest[:end]
            if is_control:
                yield self._control(first, flags, body)
            else:
                yield Data(first, body, fin=bool(flags & _FIN))

    def encode(self, frame: Frame) -> bytes:
        """The bytes of a frame; they have to be sent in the order of these calls."""
        match frame:
            case Data(stream, data, fin):
                return struct.pack(">II", stream, fin << 24 | len(data)) + data
            case SynStream(stream, headers, fin):
                start = struct.pack(">IIH", stream, 0, 0)
                return _framed(_Kind.SYN_STREAM, start + self._packed(headers), fin=fin)
            case SynReply(stream, headers, fin):
                start = struct.pack(">I", stream)
                return _framed(_Kind.SYN_REPLY, start + self._packed(headers), fin=fin)
            case RstStream(stream, status):
                return _framed(_Kind.RST_STREAM, struct.pack(">II", stream, status))
            case Ping(number):
                return _framed(_Kind.PING, struct.pack(">I", number))
            case GoAway(last_stream, status):
                return _framed(_Kind.GOAWAY, struct.pack(">II", last_stream, status))
            case Unheeded(kind):
                raise ValueError(f"a frame of type {kind} is only ever received")

    def _control(self, first: int, flags: int, body: bytes) -> Frame:
        version, kind = first >> 16 & ~_CONTROL, first & 0xFFFF
        if version != _VERSION:
            raise SpdyError(f"version {version} of SPDY instead of {_VERSION}")
        try:
            return self._parsed(kind, body, fin=bool(flags & _FIN))
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a broken frame of type {kind}: {error}") from error

    def _parsed(self, kind: int, body: bytes, *, fin: bool) -> Frame:
        match kind:
            case _Kind.SYN_STREAM:
                (stream,) = struct.unpack_from(">I", body)
                return SynStream(stream & _STREAM_BITS, self._unpacked(body[10:]), fin)
            case _Kind.SYN_REPLY:
                (stream,) = struct.unpack_from(">I", body)
                return SynReply(stream & _STREAM_BITS, self._unpacked(body[4:]), fin)
            case _Kind.RST_STREAM:
                return RstStream(*struct.unpack(">II", body))
            case _Kind.PING:
                return Ping(*struct.unpack(">I", body))
            case _Kind.GOAWAY:
                return GoAway(*struct.unpack(">II", body))
            case _Kind.HEADERS:
                self._unpacked(body[4:])  # the next headers are packed against these
        return Unheeded(kind)

    def _packed(self, headers: Mapping[str, str]) -> bytes:
        block = struct.pack(">I", len(headers))
        for name, value in headers.items():
            block += _text(name.lower().encode()) + _text(value.encode())
        return self._packer.compress(block) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def _unpacked(self, packed: bytes) -> dict[str, str]:
        block = self._unpacker.decompress(packed, _LONGEST_CONTROL)
        if self._unpacker.unconsumed_tail:
            raise SpdyError(f"headers of more than {_LONGEST_CONTROL} bytes")
        (count,) = struct.unpack_from(">I", block)
        words, place = [], 4
        for _ in range(2 * count):
            (length,) = struct.unpack_from(">I", block, place)
            words.append(block[place + 4 : place + 4 + length].decode())
            place += 4 + length
        if place > len(block):
            raise SpdyError(f"headers of {place} bytes in {len(block)}")
        return dict(zip(words[::2], words[1::2], strict=True))


def _framed(kind: _Kind, body: bytes, *, fin: bool = False) -> bytes:
    return struct.pack(">HHI", _CONTROL | _VERSION, kind, fin << 24 | len(body)) + body
