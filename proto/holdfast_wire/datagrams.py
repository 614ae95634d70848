"""Messages between processes of one machine: typed JSON datagrams with descriptors.

Belongs here: dataclasses as JSON and back, checked against their types; a datagram with its
descriptors; a body that is too long for one, which travels in a memfd. Does not belong here: the
messages, and who waits for whom. Both ends are of one release: the form carries no version.

Python's own `socket.send_fds` and `recv_fds` ignore their flags: received descriptors are inherited
by every program that is started, and both calls block in spite of MSG_DONTWAIT.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import enum
import functools
import itertools
import json
import operator
import os
import socket
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

DATAGRAM_BYTES: Final = 32_768
"""Well below the kernel's smallest socket buffer, so a few dozen datagrams always fit."""
MOST_DESCRIPTORS: Final = 250
"""Descriptors with a datagram; the kernel's limit is 253."""
PATH_BYTES: Final = 107
"""Longest path in a Unix socket's address."""
_IN_MEMFD: Final = b"memfd"
"""Body of a datagram whose first descriptor has the real one."""
_INT: Final = array.array("i").itemsize
_WORDS: Final[Mapping[object, str]] = {bool: "true or false", int: "a whole number", str: "a text"}

_T = TypeVar("_T")
_Read = Callable[[Any], Any]


class DatagramError(ValueError):
    """Bytes of the other side that are no message: the text names the field and its value."""


# --- values -------------------------------------------------------------------------------------


def encode(message: Any) -> bytes:
    """Return a dataclass as JSON, with the name of its class; raises TypeError for other values."""
    fields = dataclasses.asdict(message)
    return json.dumps({"kind": type(message).__name__, **fields}, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} has no place in a message")


def decode(body: bytes, kinds: Sequence[type[_T]]) -> _T:
    """Return the message that `encode` made these bytes from.

    Args:
        body: Its bytes.
        kinds: The classes that it may have. Types of fields: scalars, enums, `X | None`, tuples,
            mappings, other dataclasses, and Any, which is not checked.

    Raises:
        DatagramError: They are no such message.
    """
    try:
        fields = json.loads(body)
        name = fields.pop("kind")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DatagramError(f"{len(body)} bytes are no message: {error!r:.100}") from error
    kind = next((one for one in kinds if one.__name__ == name), None)
    if kind is None:
        raise DatagramError(f"{len(body)} bytes are no message: {name!r:.40} is no kind of them")
    message: _T = _named(name, _reader(typing.cast("Any", kind)), fields)
    return message


def _named(place: str, read: _Read, found: Any) -> Any:
    """Read a value; an error names its place."""
    try:
        return read(found)
    except DatagramError as error:
        raise DatagramError(f"{place}{error}") from error


def _refuse(found: object, expected: str) -> typing.NoReturn:
    raise DatagramError(f" is {found!r:.40}: expected {expected}")


@functools.cache
def _reader(hint: Any) -> _Read:
    """Return the function that turns JSON's value into one of the type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda found: found
    if origin in (types.UnionType, typing.Union):
        read = _reader(next(part for part in parts if part is not types.NoneType))
        return lambda found: None if found is None else read(found)
    if origin is tuple and parts[-1] is Ellipsis:
        return functools.partial(_row, itertools.repeat(_reader(parts[0])), None)
    if origin is tuple:
        return functools.partial(_row, [_reader(part) for part in parts], len(parts))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, _reader(parts[1]))
    if dataclasses.is_dataclass(hint):
        reads = {name: _reader(part) for name, part in typing.get_type_hints(hint).items()}
        return functools.partial(_dataclass, hint, reads)
    if issubclass(hint, enum.Enum):
        return functools.partial(_enum, hint)
    return _number if hint is float else functools.partial(_scalar, hint)


def _row(reads: Iterable[_Read], length: int | None, found: Any) -> tuple[Any, ...]:
    if not isinstance(found, list) or length not in (None, len(found)):
        _refuse(found, "a list" if length is None else f"a list of {length}")
    made: list[Any] = []
    try:
        made.extend(map(operator.call, reads, found))
    except DatagramError as error:
        raise DatagramError(f"[{len(made)}]{error}") from error
    return tuple(made)


def _mapping(read: _Read, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        _refuse(found, "an object")
    return {name: _named(f"[{name!r}]", read, value) for name, value in found.items()}


def _dataclass(kind: Any, reads: Mapping[str, _Read], found: Any) -> Any:
    if not isinstance(found, dict):
        _refuse(found, f"a {kind.__name__}")
    given = {}
    for name, value in found.items():
        if name not in reads:
            raise DatagramError(f".{name:.40} is no field")
        given[name] = _named(f".{name}", reads[name], value)
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:  # a field is missing, or the class refuses a value
        raise DatagramError(f": {error}") from error


def _enum(kind: type[enum.Enum], found: Any) -> enum.Enum:
    try:
        return kind(found)
    except ValueError:
        _refuse(found, f"one of {', '.join(repr(one.value) for one in kind)}")


def _scalar(kind: type[Any], found: Any) -> Any:
    if type(found) is not kind:  # exactly: a bool is no number here
        _refuse(found, _WORDS[kind])
    return found


def _number(found: Any) -> float:
    if type(found) not in (int, float):
        _refuse(found, "a number")
    return float(found)


# --- datagrams ----------------------------------------------------------------------------------


@contextlib.contextmanager
def short_path(path: str | Path) -> Iterator[str]:
    """Give a path to the same socket that is short enough, for bind or connect, within the block.

    A long one goes by a descriptor of its folder, as `/proc/self/fd/N/NAME`. Raises OSError if
    there is no such folder.
    """
    if len(os.fsencode(path)) <= PATH_BYTES:
        yield str(path)
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection, which the caller closes."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, body: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """Send a datagram, without SIGPIPE.

    Args:
        sock: A Unix socket, SEQPACKET.
        body: What `encode` returns.
        descriptors: Sent with it; the caller still owns them.
        flags: Of sendmsg, for example MSG_DONTWAIT.

    Raises:
        OSError: It was not sent.
    """
    if len(body) <= DATAGRAM_BYTES:
        _send(sock, body, descriptors, flags)
        return
    with open(os.memfd_create("holdfast-message", os.MFD_CLOEXEC), "wb", buffering=0) as file:  # noqa: PTH123 - it has no path
        file.write(body)
        _send(sock, _IN_MEMFD, [file.fileno(), *descriptors], flags)


def _send(sock: socket.socket, body: bytes, descriptors: Sequence[int], flags: int) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    sock.sendmsg([body], [rights] if descriptors else [], flags | socket.MSG_NOSIGNAL)


def receive(
    sock: socket.socket,
    flags: int = 0,
    *,
    longest: int = DATAGRAM_BYTES,
    most: int = MOST_DESCRIPTORS,
    trusted: bool = True,
) -> tuple[bytes, list[int]]:
    """Receive a datagram and its descriptors, which the caller owns and no child inherits.

    Args:
        sock: A Unix socket, SEQPACKET.
        flags: Of recvmsg, for example MSG_DONTWAIT.
        longest: Bytes of the largest datagram.
        most: Largest number of descriptors; the kernel closes further ones.
        trusted: False: a body in a memfd is not read. It could be a pipe, or without an end.

    Raises:
        EOFError: The other side is gone, and all that it sent has been received.
        BlockingIOError: With MSG_DONTWAIT, or on a socket that does not block: nothing has come.
        DatagramError: It was cut. Its descriptors are closed.
    """
    room = socket.CMSG_LEN(most * _INT)
    take = functools.partial(sock.recvmsg, longest, room, flags | socket.MSG_CMSG_CLOEXEC)
    try:
        body, ancillary, shown, _ = take()
    except ConnectionResetError:
        # The other end went without reading all; said once, before what it sent.
        body, ancillary, shown, _ = take()
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _INT])
    if not body and not found:
        raise EOFError
    # Cut, and without a descriptor: this process has no room for one, which is not their fault.
    if shown & socket.MSG_TRUNC or (shown & socket.MSG_CTRUNC and found):
        for fd in found:
            os.close(fd)
        raise DatagramError(f"{len(body)} bytes, or the descriptors with them, are too many")
    if body == _IN_MEMFD and found and trusted:
        with open(found.pop(0), "rb") as file:  # noqa: PTH123 - it has no path
            file.seek(0)
            body = file.read()
    return body, list(found)
