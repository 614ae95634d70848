"""TCP between two nodes: latency, and bandwidth in both directions.

One connection carries the conversation, under mutual TLS with the job's certificates. It hands the
partner a token, and several plain connections that begin with this token carry the bytes that are
measured. They are plain on purpose: the bytes mean nothing and are thrown away, and encryption
would measure a CPU of each node. Training's own traffic (gloo, NCCL) is plain as well. Without
certificates (`tls_dir` "") the conversation is plain too: that is for a node alone, over its
loopback address, where both ends are one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import math
import secrets
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast_wire import keys, loopback
from holdfast_wire.identity import IdentityError, agent_host, parse

STREAMS = 4
"""Connections that carry bytes in one direction: one alone does not fill a fast link."""
_BYTES = 256 << 10
"""Of one call; as many per stream are held."""
_MOST_LINE = 4096
_TOKEN_BYTES = 32
_STRANGER_SECONDS = 2.0
"""For the handshake or the token of one connection."""
_PINGS = 200
_PING_SECONDS = 0.2
_WARM_SHARE = 0.2
"""Of the time in one direction: TCP's window still grows, its bytes are not counted."""
_LATE_SECONDS = 0.5
"""After the time of a direction: what has not come by then is not waited for."""
UP, DOWN = b"u", b"d"


class LinkCheckError(OSError):
    """The partner did not come, broke off, or is not a node of this job."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Bounds of one measurement, and the certificates."""

    seconds: float = 0.3
    """Time of each direction, s: longer than two periods of a CPU quota (0.1 s); a check has up to
    five rounds of pairs."""
    deadline_seconds: float = 30.0
    """For the partner to come and for each answer, s: it may still import torch."""
    tls_dir: str = ""
    """Directory of ca.pem, cert.pem, key.pem; "": plain, for the loopback address only."""
    job_uid: str = ""
    """With `tls_dir`: the job that the partner's certificate must name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """Both ends' common result."""

    latency_us: float
    """One byte there and back, the median, us."""
    up_bytes: float
    """Bytes per second from the node that joins to the one that serves."""
    down_bytes: float
    """Bytes per second the other way."""

    @property
    def gigabits(self) -> float:
        """The slower direction, Gbit/s."""
        return min(self.up_bytes, self.down_bytes) * 8 / 1e9


def listen(host: str) -> socket.socket:
    """Return a socket that listens on a free port of this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen(2 * STREAMS + 8)
    return listener


class Conversation:
    """Lines of JSON with the partner, each with a deadline."""

    def __init__(self, connection: socket.socket, deadline_seconds: float) -> None:
        self._connection = connection
        self._deadline = deadline_seconds
        self._read = b""

    @property
    def local_host(self) -> str:
        """The address of this node that the partner is connected to."""
        return str(self._connection.getsockname()[0])

    @property
    def partner_host(self) -> str:
        """The address of the partner."""
        return str(self._connection.getpeername()[0])

    def send(self, **words: Any) -> None:
        """Send one line."""
        self._connection.settimeout(self._deadline)
        self._connection.sendall(json.dumps(words).encode() + b"\n")

    def receive(self) -> Mapping[str, Any]:
        """Return the partner's next line; raises LinkCheckError if there is none in time."""
        deadline = time.monotonic() + self._deadline
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or len(self._read) > _MOST_LINE:
                raise LinkCheckError(f"the partner said nothing in {self._deadline:g} s")
            self._connection.settimeout(left)
            try:
                data = self._connection.recv(_MOST_LINE)
            except TimeoutError:
                continue
            if not data:
                raise LinkCheckError("the partner broke off")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        words = json.loads(line)
        if not isinstance(words, dict):
            raise LinkCheckError(f"the partner sent {line[:80]!r}, which is no message")
        return words

    def number(self, name: str) -> float:
        """Return a number of the partner's next line; raises LinkCheckError if there is none."""
        value = self.receive().get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise LinkCheckError(f"the partner sent {name}={value!r}, which is no number")
        return float(value)


@contextlib.contextmanager
def serve(
    listener: socket.socket, settings: LinkSettings
) -> Iterator[tuple[Conversation, Callable[[], LinkFigures]]]:
    """Wait for the partner; yield the conversation and the measurement, to be called once.

    Raises LinkCheckError: it did not come in time.
    """
    deadline = time.monotonic() + settings.deadline_seconds
    token = secrets.token_bytes(_TOKEN_BYTES)
    with contextlib.ExitStack() as opened:
        control = opened.enter_context(_welcome(listener, settings, deadline))
        talk = Conversation(control, settings.deadline_seconds)
        talk.send(token=token.hex())
        streams = _accept_streams(listener, token, deadline)
        for stream in (*streams[UP], *streams[DOWN]):
            opened.enter_context(stream)

        def measured() -> LinkFigures:
            _echo(streams[DOWN][0], settings)
            latency = talk.number("latency_us")
            talk.send(go="up")
            up = _receive(streams[UP], settings)
            talk.send(up=up)
            talk.receive()
            _send(streams[DOWN], settings)
            return LinkFigures(latency_us=latency, up_bytes=up, down_bytes=talk.number("down"))

        yield talk, measured


@contextlib.contextmanager
def join(
    host: str, port: int, settings: LinkSettings
) -> Iterator[tuple[Conversation, Callable[[], LinkFigures]]]:
    """Connect to the partner; yield the conversation and the measurement, to be called once.

    Raises LinkCheckError: it does not answer, or its certificate is not one of this job.
    """
    with contextlib.ExitStack() as opened:
        control = opened.enter_context(_secured(_connect(host, port, settings), settings))
        talk = Conversation(control, settings.deadline_seconds)
        token = bytes.fromhex(str(talk.receive().get("token")))
        streams = {
            way: [opened.enter_context(_connect(host, port, settings)) for _ in range(STREAMS)]
            for way in (UP, DOWN)
        }
        for way, found in streams.items():
            for stream in found:
                stream.sendall(token + way)

        def measured() -> LinkFigures:
            latency = _ping(streams[DOWN][0], settings)
            talk.send(latency_us=latency)
            talk.receive()
            _send(streams[UP], settings)
            up = talk.number("up")
            talk.send(go="down")
            down = _receive(streams[DOWN], settings)
            talk.send(down=down)
            return LinkFigures(latency_us=latency, up_bytes=up, down_bytes=down)

        yield talk, measured


def over_loopback(settings: LinkSettings = LinkSettings()) -> LinkFigures:
    """Return this node's figures with itself, both ends in this process."""

    def other_end() -> None:
        with serve(listener, settings) as (_, measure):
            measure()

    with listen(loopback.address()) as listener, ThreadPoolExecutor(1) as thread:
        host, port = listener.getsockname()[:2]
        served = thread.submit(other_end)
        try:
            with join(host, port, settings) as (_, measure):
                return measure()
        finally:
            if (error := served.exception()) is not None:
                raise LinkCheckError(f"the serving end failed: {error}") from error


# ------------------------------------------------------------------------------------ connections


@contextlib.contextmanager
def _welcome(
    listener: socket.socket, settings: LinkSettings, deadline: float
) -> Iterator[socket.socket]:
    """Yield the first connection that shows a certificate of this job; others are cut off."""
    strangers = list[str]()
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            break
        connection.settimeout(min(left, _STRANGER_SECONDS))
        try:
            with connection, _handshake(connection, settings, server=True) as secured:
                yield secured
                return
        except _StrangerError as error:
            strangers.append(str(error))
    text = f"the partner did not connect in {settings.deadline_seconds:g} s"
    if strangers:
        text += f"; cut off {len(strangers)} that are not its partner: {strangers[-1]}"
    raise LinkCheckError(text)


class _StrangerError(Exception):
    """A connection is not the partner's."""


@contextlib.contextmanager
def _handshake(
    connection: socket.socket, settings: LinkSettings, *, server: bool
) -> Iterator[socket.socket]:
    if not settings.tls_dir:
        yield connection
        return
    context = _context(Path(settings.tls_dir), server=server)
    host = None if server else agent_host(settings.job_uid)
    try:
        secured = context.wrap_socket(connection, server_side=server, server_hostname=host)
    except OSError as error:  # SSLError among them
        raise _StrangerError(str(error)) from error
    with secured:
        _check_identity(secured, settings.job_uid)
        yield secured


def _context(tls_dir: Path, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # Python 3.13 asks for extensions that gRPC does not ask for, nor a job's authority has.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(tls_dir / keys.CA_FILE)
        context.load_cert_chain(tls_dir / keys.CERT_FILE, tls_dir / keys.KEY_FILE)
    except OSError as error:
        raise LinkCheckError(
            f"certificate files in {str(tls_dir)!r} cannot be used ({error}); the directory must "
            f"have {keys.CA_FILE}, {keys.CERT_FILE} and {keys.KEY_FILE}"
        ) from error
    return context


def _check_identity(secured: ssl.SSLSocket, job_uid: str) -> None:
    found: Any = (secured.getpeercert() or {}).get("subjectAltName", ())
    names = [str(name) for kind, name in found if kind == "URI"]
    for name in names:
        with contextlib.suppress(IdentityError):
            identity = parse(name)
            if (identity.job_uid, identity.role) == (job_uid, keys.ROLE_AGENT):
                return
    raise _StrangerError(f"its certificate is not one of an agent of job {job_uid}: {names}")


@contextlib.contextmanager
def _secured(connection: socket.socket, settings: LinkSettings) -> Iterator[socket.socket]:
    try:
        with connection, _handshake(connection, settings, server=False) as secured:
            yield secured
    except _StrangerError as error:
        raise LinkCheckError(f"the partner's TLS handshake failed: {error}") from error


def _connect(host: str, port: int, settings: LinkSettings) -> socket.socket:
    try:
        connection = socket.create_connection((host, port), settings.deadline_seconds)
    except OSError as error:
        raise LinkCheckError(
            f"no connection to {loopback.bracketed(host)}:{port}: {error}"
        ) from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _accept_streams(
    listener: socket.socket, token: bytes, deadline: float
) -> Mapping[bytes, Sequence[socket.socket]]:
    """Return the streams of both directions; a connection without the token is cut off."""
    found: dict[bytes, list[socket.socket]] = {UP: [], DOWN: []}
    try:
        while not all(len(streams) == STREAMS for streams in found.values()):
            if (left := deadline - time.monotonic()) <= 0:
                raise LinkCheckError("the partner's streams did not come in time")
            listener.settimeout(left)
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                way = _admitted(connection, token)
                if way in found and len(found[way]) < STREAMS:
                    found[way].append(connection)
                else:
                    connection.close()
    except BaseException:
        for stream in (*found[UP], *found[DOWN]):
            stream.close()
        raise
    return found


def _admitted(connection: socket.socket, token: bytes) -> bytes:
    """Return the direction that a connection asks for, or b"" if it lacks the token."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_STRANGER_SECONDS)
    try:
        head = _exactly(connection, _TOKEN_BYTES + 1)
    except OSError:
        return b""
    return head[-1:] if hmac.compare_digest(head[:-1], token) else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise LinkCheckError("the partner broke off")
        data += more
    return data


# ---------------------------------------------------------------------------------------- traffic


def _ping(stream: socket.socket, settings: LinkSettings) -> float:
    """Return the median time of one byte there and back, us; a last byte ends the series."""
    stream.settimeout(settings.deadline_seconds)
    times, end = list[float](), time.monotonic() + _PING_SECONDS
    while len(times) < _PINGS and (time.monotonic() < end or not times):
        begin = time.perf_counter()
        stream.sendall(b"p")
        _exactly(stream, 1)
        times.append(time.perf_counter() - begin)
    stream.sendall(b"e")
    return statistics.median(times) * 1e6


def _echo(stream: socket.socket, settings: LinkSettings) -> None:
    stream.settimeout(settings.deadline_seconds)
    while _exactly(stream, 1) == b"p":
        stream.sendall(b"p")


def _send(streams: Sequence[socket.socket], settings: LinkSettings) -> None:
    """Send for the time of one direction, or until the partner has closed."""
    data, end = bytes(_BYTES), time.monotonic() + settings.seconds

    def work(stream: socket.socket) -> None:
        stream.settimeout(settings.seconds + _LATE_SECONDS)
        # The partner closes when its time is over, whatever is still on its way.
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)

    with ThreadPoolExecutor(len(streams)) as threads:
        list(threads.map(work, streams))


def _receive(streams: Sequence[socket.socket], settings: LinkSettings) -> float:
    """Return the bytes per second that arrive, without those of the first moments."""
    begin = time.monotonic()
    warm = begin + settings.seconds * _WARM_SHARE
    end = begin + settings.seconds + _LATE_SECONDS

    def work(stream: socket.socket) -> tuple[int, float]:
        """Return the bytes that count, and when the last of them came."""
        room, found, last = bytearray(_BYTES), 0, warm
        with stream, contextlib.suppress(OSError):
            while (left := end - time.monotonic()) > 0:
                stream.settimeout(left)
                count = stream.recv_into(room)
                if not count:
                    break
                last = max(warm, time.monotonic())
                if last > warm:
                    found += count
        return found, last

    with ThreadPoolExecutor(len(streams)) as threads:
        counts, lasts = zip(*threads.map(work, streams), strict=True)
    passed = max(lasts) - warm
    return sum(counts) / passed if passed > 0 else 0.0
