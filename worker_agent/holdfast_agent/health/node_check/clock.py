"""Offset of the clock from a reference clock, by SNTP (RFC 4330).

There is no offset without a reference: a node cannot tell by itself that its clock is wrong.
"""

from __future__ import annotations

import socket
import struct
import time

from holdfast_agent.health.node_check.measured import FigureReporter
from holdfast_wire.resources import Resource

NTP_PORT = 123
_TRIES = 4
_TRY_SECONDS = 1.0
_TO_UNIX = 2_208_988_800
"""Seconds from 1900, where NTP counts from, to 1970."""
_PACKET = struct.Struct("!BBBb11I")
_CLIENT_V4 = 0x23


def measure(report: FigureReporter, server: str) -> None:
    """Report the offset in s, without its sign and less the error that the way there allows.

    server: HOST or HOST:PORT of an NTP server.
    """
    with report.measures(Resource.CLOCK_OFFSET, server):
        host, port = split(server)
        offset, way = _best(host, port)
        report.figure(max(0.0, abs(offset) - way / 2))


def split(server: str) -> tuple[str, int]:
    """Return host and port; raises ValueError for a port that is none."""
    host, colon, port = server.rpartition(":")
    if not colon or "]" in port or (":" in host and "[" not in host):
        return server.strip("[]"), NTP_PORT
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{port!r} is no port")
    return host.strip("[]"), int(port)


def _best(host: str, port: int) -> tuple[float, float]:
    """Return offset and time there and back of the answer with the shortest way, s."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    answers = list[tuple[float, float]]()
    with socket.socket(family, kind) as link:
        link.settimeout(_TRY_SECONDS)
        link.connect(target)
        for _ in range(_TRIES):
            try:
                answers.append(_ask(link))
            except TimeoutError:
                continue
    if not answers:
        raise OSError(f"no answer in {_TRIES * _TRY_SECONDS:g} s from {host} port {port} (NTP)")
    way, offset = min((way, offset) for offset, way in answers)
    return offset, way


def _ask(link: socket.socket) -> tuple[float, float]:
    sent = time.time()
    link.send(_PACKET.pack(_CLIENT_V4, 0, 0, 0, *([0] * 9), *_ntp(sent)))
    deadline = time.monotonic() + _TRY_SECONDS
    while time.monotonic() < deadline:
        answer, came = link.recv(1024), time.time()
        if len(answer) < _PACKET.size:
            continue
        words = _PACKET.unpack(answer[: _PACKET.size])[4:]
        # An answer repeats the time of its request: a late one of an earlier request is dropped.
        if tuple(words[5:7]) == _ntp(sent):
            received, left = _unix(*words[7:9]), _unix(*words[9:11])
            return ((received - sent) + (left - came)) / 2, (came - sent) - (left - received)
    raise TimeoutError


def _ntp(unix: float) -> tuple[int, int]:
    whole = int(unix)
    return (whole + _TO_UNIX) % (1 << 32), int((unix - whole) * (1 << 32))


def _unix(seconds: int, fraction: int) -> float:
    return seconds - _TO_UNIX + fraction / (1 << 32)
