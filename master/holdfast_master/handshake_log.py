"""gRPC's own log lines, sorted: refused TLS handshakes by reason, the rest as it is. Pure.

gRPC refuses a handshake before Python hears of the connection. What it says about it goes to
standard error only, in the words of grpc-core (as of 1.71 to 1.85, with its tracer `handshaker`):
a record of `handshaker.cc` with `error=` and the peer's address, over several lines.
"""

from __future__ import annotations

import dataclasses
import enum
import re


class HandshakeReason(enum.Enum):
    """Why a connection was refused before any call."""

    EXPIRED = "expired"
    """The client's certificate has expired, or is not valid yet."""
    UNKNOWN_AUTHORITY = "unknown_authority"
    """The client's certificate is of another authority: another job, as a rule."""
    NO_CERTIFICATE = "no_certificate"
    """The client showed no certificate."""
    PLAINTEXT = "plaintext"
    """The client spoke no TLS."""
    CLIENT_LEFT = "client_left"
    """The client closed the connection: it does not trust this job's authority, or probes ports."""
    TIMED_OUT = "timed_out"
    """The client did not go on."""
    OTHER = "other"


MEANING = {
    HandshakeReason.EXPIRED: "the client's certificate has expired or is not valid yet",
    HandshakeReason.UNKNOWN_AUTHORITY: "the client's certificate is of another job's authority",
    HandshakeReason.NO_CERTIFICATE: "the client showed no certificate",
    HandshakeReason.PLAINTEXT: "the client spoke no TLS",
    HandshakeReason.CLIENT_LEFT: (
        "the client closed the connection: it does not trust this job's authority, "
        "as an agent of another job, or it probes ports"
    ),
    HandshakeReason.TIMED_OUT: "the client did not go on with the handshake",
    HandshakeReason.OTHER: "see detail",
}
"""For people."""
_REASONS: tuple[tuple[str, HandshakeReason], ...] = (
    ("certificate has expired", HandshakeReason.EXPIRED),
    ("certificate is not yet valid", HandshakeReason.EXPIRED),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", HandshakeReason.NO_CERTIFICATE),
    ("CERTIFICATE_VERIFY_FAILED", HandshakeReason.UNKNOWN_AUTHORITY),
    ("UNKNOWN_CA", HandshakeReason.CLIENT_LEFT),
    ("WRONG_VERSION_NUMBER", HandshakeReason.PLAINTEXT),
    ("HTTP_REQUEST", HandshakeReason.PLAINTEXT),
    ("Socket closed", HandshakeReason.CLIENT_LEFT),
    ("Connection reset", HandshakeReason.CLIENT_LEFT),
    ("End of TCP stream", HandshakeReason.CLIENT_LEFT),
    ("imed out", HandshakeReason.TIMED_OUT),
    ("imeout", HandshakeReason.TIMED_OUT),
)
_RECORD = re.compile(rb"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([\w.]+):\d+\] ")
_FAILED = re.compile(r"CallNextHandshakerLocked: error=(?!OK)(.+?)(?:\n|$)")
_PEER = re.compile(r"endpoint_peer_address=(?:ipv[46]:)?([^,}\s]+)")
_CONTINUATIONS = (b"=== Source Location Trace", b"src/core/", b" shutdown=", b"\n")
_SSL = "Handshake failed with error "
_NOISE = ("log level info is not suitable", "grpc tracers: handshaker", "handshake manager 0x")


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """One refused handshake."""

    reason: HandshakeReason
    peer: str
    """Address and port; empty: unknown."""
    detail: str
    """grpc-core's own words."""


@dataclasses.dataclass(frozen=True, slots=True)
class Passed:
    """Bytes that gRPC did not write."""

    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """A record of gRPC's about something else."""

    severity: str
    """I, W, E or F."""
    text: str


Found = Refused | Passed | Said


class LogSorter:
    """Sorts a stream of standard error; keeps an unfinished record until more comes."""

    def __init__(self) -> None:
        self._rest = b""
        self._traced = False

    @property
    def waits(self) -> bool:
        """Whether something is kept for which more may come."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Found]:
        """Take more bytes and return what they complete."""
        self._rest += data
        whole, newline, self._rest = self._rest.rpartition(b"\n")
        found: list[Found] = []
        records = _split(whole + newline)
        # The last record may go on: its other lines are perhaps not here yet.
        if records and _continues(records[-1]):
            self._rest = records.pop() + self._rest
        for record in records:
            found += self._sort(record)
        return found

    def flush(self) -> list[Found]:
        """Return what is kept: nothing more of it is coming."""
        rest, self._rest = self._rest, b""
        return [item for record in _split(rest) for item in self._sort(record)]

    def _sort(self, record: bytes) -> list[Found]:
        match = _RECORD.match(record)
        if match is None:
            return [Passed(record)] if record else []
        text = record.decode(errors="replace")
        if match[2] == b"handshaker.cc":
            self._traced = True
            return _traced(text)
        if _SSL in text:
            # With the tracer on, the same failure comes again with its peer.
            detail = text.partition(_SSL)[2].strip()
            return [] if self._traced else [Refused(_reason(detail), "", detail)]
        lowered = text.lower()
        if any(noise in lowered for noise in _NOISE):
            return []
        return [Said(match[1].decode(), text.partition("] ")[2].strip())]


def _split(data: bytes) -> list[bytes]:
    """Cut `data` before each line that begins a record."""
    records: list[bytes] = []
    for line in data.splitlines(keepends=True):
        if records and _continues(records[-1]) and line.startswith(_CONTINUATIONS):
            records[-1] += line
        else:
            records.append(line)
    return records


def _continues(record: bytes) -> bool:
    return _RECORD.match(record) is not None and (
        b"handshaker.cc" in record or b"handshake manager 0x" in record
    )


def _traced(text: str) -> list[Found]:
    failed = _FAILED.search(text)
    if failed is None or "shutdown=true" in text:
        return []
    peer = _PEER.search(text)
    detail = failed[1].strip()
    return [Refused(_reason(detail), peer[1] if peer else "", detail)]


def _reason(detail: str) -> HandshakeReason:
    for words, reason in _REASONS:
        if words in detail:
            return reason
    return HandshakeReason.OTHER
