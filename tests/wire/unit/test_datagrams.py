"""Datagrams: their types, whose their descriptors are, and that nobody waits who asked not to."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.flash.server.protocol import Granted, ServerLink
from holdfast_wire.datagrams import DatagramError, decode, encode, receive, send


class Way(enum.Enum):
    """A direction."""

    UP = "up"


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a message."""

    sizes: tuple[tuple[int, float], ...]
    way: Way = Way.UP


@dataclasses.dataclass(frozen=True)
class Sample:
    """A message with a field of each type."""

    parts: Mapping[str, Part]
    note: str | None = None
    done: bool = False
    more: Any = None


SAMPLE = Sample({"a": Part(((1, 0.5), (2, 3.0)))}, more=[1, {"b": None}])


def test_a_message_survives_with_its_types() -> None:
    """Tuples, enums and inner dataclasses come back as what they were."""
    assert decode(encode(SAMPLE), (Part, Sample)) == SAMPLE
    assert decode(encode(Sample({})), (Sample,)) == Sample({})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"note": 3}, "Sample.note is 3: expected a text"),
        ({"done": 1}, "Sample.done is 1: expected true or false"),
        ({"parts": []}, "Sample.parts is []: expected an object"),
        ({"parts": {"a": 1}}, "Sample.parts['a'] is 1: expected a Part"),
        ({"parts": {"a": {"way": "up"}}}, "sizes"),
        ({"parts": {"a": {"sizes": [[1, 2], [3]]}}}, "parts['a'].sizes[1] is [3]: expected a list"),
        ({"parts": {"a": {"sizes": [[True, 2]]}}}, "sizes[0][0] is True: expected a whole number"),
        ({"parts": {"a": {"sizes": [], "way": "left"}}}, "way is 'left': expected one of 'up'"),
        ({"size": 1}, "Sample.size is no field"),
        ({"kind": "Other"}, "'Other' is no kind"),
        ({"kind": ["Sample"]}, "['Sample'] is no kind"),
    ],
)
def test_what_is_no_message_is_refused_by_its_field(change: dict[str, Any], text: str) -> None:
    """A person finds the fault from the error alone."""
    body = json.dumps(json.loads(encode(SAMPLE)) | change).encode()
    with pytest.raises(DatagramError) as refused:
        decode(body, (Sample,))
    assert text in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"{}", b"[" * 100_000])
def test_bytes_that_are_no_object_are_refused(body: bytes) -> None:
    """Whatever a process sends, the other one gets an error of this module."""
    with pytest.raises(DatagramError, match="no message"):
        decode(body, (Sample,))


def test_what_is_received_is_not_inherited() -> None:
    """A program that a rank starts at that moment would otherwise pin a whole arena."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        send(ends[0], b"x", [0])
        body, (fd,) = receive(ends[1])
        assert (body, os.get_inheritable(fd)) == (b"x", False)
        os.close(fd)
        near, far = ServerLink(ends[0]), ServerLink(ends[1])
        near.send(Granted(), (0,))
        answer = far.receive(1.0)
        assert answer is not None
        assert not os.get_inheritable(answer[1][0])
        os.close(answer[1][0])


def test_flags_count() -> None:
    """Neither side waits for the other where it asked not to, whatever the socket says."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        with pytest.raises(BlockingIOError):
            receive(one, socket.MSG_DONTWAIT)
        with pytest.raises(BlockingIOError):
            _send_often(one)


def _send_often(sock: socket.socket) -> None:
    for _ in range(100_000):
        send(sock, b"x", [], socket.MSG_DONTWAIT)
