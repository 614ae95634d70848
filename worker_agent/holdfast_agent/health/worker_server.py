"""Client of the worker server that torch runs in each rank, over its Unix socket. Calls block.

The server lives in the user's process, so its answers are not trusted: they are bounded in size,
parsed as JSON, and each value is checked. It answers only POST, on a thread without the GIL. A
request that waits for the GIL (`dump_traceback`) keeps one of its 32 threads even after the client
has gone, so nobody should ask a rank that does not answer more than a few times.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast_wire.datagrams import short_path

MAX_BYTES: Final = 8 * 1024 * 1024
"""Longest accepted answer. 2,000 entries, torch's default, are 950 KB."""
MAX_ENTRIES: Final = 20_000
MAX_RANKS: Final = 100_000
_MAX_TEXT: Final = 200
"""Characters of a name."""
_MAX_DIMENSIONS: Final = 100
"""Numbers of a tensor's size."""
_CHUNK: Final = 1 << 16
_LARGEST: Final = 2**63 - 1
_LARGEST_RANK: Final = 2**32 - 1
_OK: Final = 200


class WorkerServerError(Exception):
    """A worker server gave no usable answer: the text names the socket and the request."""


class NoAnswerError(WorkerServerError):
    """Nobody listens, or no answer came before the deadline."""


class AnswerError(WorkerServerError):
    """The answer is torn, too long, not of the expected form, or an error of the server.

    For example this torch may lack the handler.
    """


class FlightEntry(NamedTuple):
    """One operation that a rank has issued, from torch's flight recorder.

    A named tuple: an answer has hundreds, and a frozen dataclass takes six times as long to make.
    """

    group: str
    """Name that torch gave the process group."""
    description: str
    """`default_pg` for the one of all ranks."""
    operation: str
    """For example `gloo:all_reduce`."""
    sizes: tuple[tuple[int, ...], ...]
    """Size of each input tensor."""
    dtypes: tuple[str, ...]
    sequence: int
    """Number of the collective in its group, from 1."""
    created_ns: int
    """Unix time at which this rank issued it, ns, by the node's clock."""
    is_p2p: bool
    """True: a send or receive. Its number is that of the collective before it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """The newest operations of one rank, oldest first; empty before its first collective."""

    entries: tuple[FlightEntry, ...] = ()
    ranks: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Global ranks by the group's name, as far as the backend tells: gloo tells nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerServer:
    """The worker server of one rank, at `socket_path`."""

    socket_path: Path

    def flight_trace(self, seconds: float) -> bytes:
        """Return the bytes for `parse_flight_record`; the GIL is not needed.

        seconds: Longest wait, s.

        Raises WorkerServerError: no usable answer came within `seconds`.
        """
        return self._post("fr_trace_json", seconds)

    def traceback(
        self, seconds: float, keep: Callable[[socket.socket], None] = socket.socket.close
    ) -> str:
        """Return Python's stacks of all threads, in faulthandler's format; needs the GIL.

        seconds: Longest wait, s.
        keep: Takes the connection where no answer came in time: one may still come.

        Raises:
            NoAnswerError: None came within `seconds`: perhaps a thread never frees the GIL.
            WorkerServerError: No usable answer came.
        """
        return self._post("dump_traceback", seconds, keep).decode(errors="replace")

    def _post(
        self,
        handler: str,
        seconds: float,
        keep: Callable[[socket.socket], None] = socket.socket.close,
    ) -> bytes:
        deadline = time.monotonic() + seconds
        where = f"{self.socket_path}: {handler}"
        connection = socket.socket(socket.AF_UNIX)
        end = connection.close
        try:
            connection.settimeout(seconds)
            with short_path(self.socket_path) as place:
                connection.connect(place)
            connection.sendall(
                f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\n"
                "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
            answer = _read(connection, deadline)
        except TimeoutError as error:
            end = functools.partial(keep, connection)
            raise NoAnswerError(f"{where}: no answer within {seconds:g} s") from error
        except OSError as error:
            raise NoAnswerError(f"{where}: {error}") from error
        except AnswerError as error:
            raise AnswerError(f"{where}: {error}") from error
        finally:
            end()
        return _body(answer, where)


def _read(connection: socket.socket, deadline: float) -> bytes:
    """Read until the server closes; a trickle of bytes does not move the deadline."""
    answer = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(_CHUNK)
        if not chunk:
            return bytes(answer)
        answer += chunk
        if len(answer) > MAX_BYTES:
            raise AnswerError(f"the answer is longer than {MAX_BYTES} bytes")


def _body(answer: bytes, where: str) -> bytes:
    head, end, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not end or len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdecimal():
        raise AnswerError(f"{where}: {first[:_MAX_TEXT]!r} is no HTTP status line")
    if words[1] != str(_OK):
        text = body[:_MAX_TEXT].decode(errors="replace")
        raise AnswerError(f"{where}: HTTP status {words[1][:9]}: {text}")
    pairs = (field.partition(":") for field in fields)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    length = headers.get("content-length", "")
    if length != str(len(body)):
        raise AnswerError(f"{where}: {len(body)} bytes came, Content-Length is {length[:20]!r}")
    return body


def parse_flight_record(body: bytes) -> FlightRecord:
    """Parse the answer of `fr_trace_json`.

    Raises AnswerError: it is no JSON, or a value is missing or of another type.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"no JSON: {error}") from error
    if not isinstance(document, dict):
        raise AnswerError(f"expected an object, got {type(document).__name__}")
    # Without any collective, torch leaves the entries out.
    entries = _list(document.get("entries", []), "entries", MAX_ENTRIES)
    groups = document.get("pg_config", {})
    if not isinstance(groups, dict):
        raise AnswerError("pg_config: expected an object")
    shapes: dict[str, _Shape] = {}
    return FlightRecord(
        entries=tuple([_entry(item, at, shapes) for at, item in enumerate(entries)]),
        ranks=dict(_group(item) for item in groups.values()),
    )


_Shape = tuple[str, str, str, tuple[tuple[int, ...], ...], tuple[str, ...]]
"""The fields of an entry that many entries of an answer share: the first ones, to `dtypes`."""


def _entry(item: object, at: int, shapes: dict[str, _Shape]) -> FlightEntry:
    """Return a checked entry; shapes: those that this answer has had already, by their text.

    A training step issues few kinds of collectives, and to check a kind costs more than the rest.
    """
    if not isinstance(item, dict):
        raise AnswerError(f"entries[{at}]: expected an object")
    get = item.get
    group, sizes, dtypes = get("process_group"), get("input_sizes"), get("input_dtypes")
    text = f"{get('profiling_name')!r}|{group!r}|{sizes!r}|{dtypes!r}"
    shape = shapes.get(text)
    if shape is None:
        shape = shapes[text] = _shape(item, f"entries[{at}]")
    is_p2p = get("is_p2p")
    if not isinstance(is_p2p, bool):
        raise AnswerError(f"entries[{at}].is_p2p: expected true or false")
    sequence = _whole(item, "collective_seq_id", at)
    return FlightEntry(*shape, sequence, _whole(item, "time_created_ns", at), is_p2p)


def _whole(item: dict[str, Any], field: str, at: int) -> int:
    value = item.get(field)
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    return _number(value, f"entries[{at}].{field}")


def _shape(item: dict[str, Any], where: str) -> _Shape:
    group = _list(item.get("process_group"), f"{where}.process_group", 2)
    if len(group) != 2:
        raise AnswerError(f"{where}.process_group: expected a name and a description")
    sizes = _list(item.get("input_sizes"), f"{where}.input_sizes", _LARGEST)
    dtypes = _list(item.get("input_dtypes"), f"{where}.input_dtypes", _LARGEST)
    return (
        _text(group[0], f"{where}.process_group"),
        _text(group[1], f"{where}.process_group"),
        _text(item.get("profiling_name"), f"{where}.profiling_name"),
        tuple([_numbers(size, f"{where}.input_sizes", _MAX_DIMENSIONS) for size in sizes]),
        tuple([_text(dtype, f"{where}.input_dtypes") for dtype in dtypes]),
    )


def _group(item: object) -> tuple[str, tuple[int, ...]]:
    """Return a group's name and ranks. The ranks are a text, such as "[0, 1]"."""
    if not isinstance(item, dict):
        raise AnswerError("pg_config: expected objects")
    name = _text(item.get("name"), "pg_config.name")
    text = item.get("ranks")
    if not isinstance(text, str):
        raise AnswerError("pg_config.ranks: expected a text")
    try:
        ranks = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"pg_config.ranks: {text[:_MAX_TEXT]!r} is no list") from error
    # Gloo leaves the name out, and each group overwrites the one before.
    return name, (_numbers(ranks, "pg_config.ranks", MAX_RANKS, _LARGEST_RANK) if name else ())


def _list(value: object, where: str, longest: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > longest:
        raise AnswerError(f"{where}: expected a list of at most {longest}")
    return value


def _numbers(value: object, where: str, longest: int, largest: int = _LARGEST) -> tuple[int, ...]:
    items = _list(value, where, longest)
    return tuple([_number(item, where, largest) for item in items])


def _number(value: object, where: str, largest: int = _LARGEST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise AnswerError(f"{where}={value!r:.40}: expected a number from 0 to {largest}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise AnswerError(f"{where}={value!r:.40}: expected a text")
    # JSON may hold half of a surrogate pair, which no protobuf takes.
    return value[:_MAX_TEXT].encode(errors="replace").decode()
