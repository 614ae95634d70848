"""Messages and their twins: nothing is lost between them, nothing wrong gets through."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import types
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast_wire import codec, messages
from holdfast_wire.messages import (
    BudgetCharge,
    Fence,
    Heartbeat,
    Hello,
    JobStatus,
    RestartWorkerRequest,
    SessionRequest,
    SessionResponse,
    Warmed,
)
from messages.any_twin import twin_names, twins

SCALARS = {1: float, 3: int, 4: int, 5: int, 8: bool, 9: str, 12: bytes, 13: int}
"""Protobuf's type numbers to Python's types."""
MESSAGE, ENUM = 11, 14


@pytest.mark.parametrize("name", twin_names())
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_message_comes_back_as_it_was_sent(name: str, data: st.DataObject) -> None:
    """Twin to protobuf to bytes and back gives an equal twin."""
    twin = data.draw(twins(name))
    assert codec.from_proto(codec.to_proto(twin)) == twin
    assert codec.decode(type(twin), codec.encode(twin)) == twin


@pytest.mark.parametrize("name", twin_names())
def test_every_twin_has_the_fields_of_its_message(name: str) -> None:
    """Same names, kinds, presence and members of oneofs; a twin's default is protobuf's."""
    kind = getattr(messages, name)
    descriptor: Any = codec.proto_of(name).DESCRIPTOR
    hints = typing.get_type_hints(kind)
    oneofs = {one.name: one for one in descriptor.oneofs if not one.name.startswith("_")}
    inside = {field.name for one in oneofs.values() for field in one.fields}
    plain = {field.name: field for field in descriptor.fields if field.name not in inside}
    assert set(hints) == set(plain) | set(oneofs)
    for field_name, field in plain.items():
        check_field(field, hints[field_name], f"{name}.{field_name}")
    for one_name, one in oneofs.items():
        kinds = {part.__name__ for part in typing.get_args(hints[one_name])}
        assert kinds == {field.message_type.name for field in one.fields} | {"NoneType"}
    assert codec.from_proto(codec.proto_of(name)()) == kind()


def check_field(field: Any, hint: Any, where: str) -> None:
    """Assert that one annotation says what the field is."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        assert arguments == (str, str), where
        return
    if field.label == field.LABEL_REPEATED:
        assert (origin, arguments[1]) == (tuple, ...), where
        hint = arguments[0]
    elif field.has_presence:
        assert isinstance(hint, types.UnionType), where
        assert type(None) in arguments, where
        hint = next(part for part in arguments if part is not type(None))
    if field.type == MESSAGE:
        assert hint.__name__ == field.message_type.name, where
    elif field.type == ENUM:
        check_enum(hint, field.enum_type, where)
    else:
        assert hint is SCALARS[field.type], where


def check_enum(kind: type[enum.IntEnum], descriptor: Any, where: str) -> None:
    """Assert that an enum has the same members, without the prefix that protobuf wants."""
    prefix = "".join(f"_{char}" if char.isupper() else char for char in descriptor.name)
    prefix = f"{prefix.strip('_').upper()}_"
    proto = {value.name.removeprefix(prefix): value.number for value in descriptor.values}
    assert kind.__name__ == descriptor.name, where
    assert {member.name: member.value for member in kind} == proto, where


@pytest.mark.parametrize("name", twin_names())
def test_twins_are_frozen_values(name: str) -> None:
    """They can be compared and shared, and nobody changes one that another holds."""
    twin = getattr(messages, name)()
    assert twin == getattr(messages, name)()
    assert not hasattr(twin, "__dict__")
    for field in dataclasses.fields(twin)[:1]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(twin, field.name, None)


def test_absent_is_not_zero() -> None:
    """A field with presence keeps the difference."""
    absent, zero = RestartWorkerRequest(), RestartWorkerRequest(node_rank=0)
    assert absent.node_rank is None
    assert codec.decode(RestartWorkerRequest, codec.encode(absent)) == absent
    assert codec.decode(RestartWorkerRequest, codec.encode(zero)) == zero
    hello = Hello(max_restarts=0)
    assert codec.decode(Hello, codec.encode(hello)).max_restarts == 0


def test_an_empty_member_of_a_oneof_is_set() -> None:
    """A message without fields still says which message it is."""
    request = SessionRequest(message=Warmed())
    assert codec.decode(SessionRequest, codec.encode(request)) == request
    assert codec.decode(SessionRequest, b"") == SessionRequest()


@pytest.mark.parametrize(
    ("twin", "words"),
    [
        (Fence(epoch=-1), "Fence cannot be encoded"),
        (Heartbeat(sequence=2**64), "Heartbeat cannot be encoded"),
        (SessionRequest(fence=Fence(group=2**32)), "Fence cannot be encoded"),
        (JobStatus(name="\ud800"), "JobStatus cannot be encoded"),
        (JobStatus(step="7"), "JobStatus cannot be encoded"),  # type: ignore[arg-type]
        (object(), "object is not a message of holdfast.v1"),
    ],
    ids=["negative", "too large", "inside", "surrogate", "another type", "no twin"],
)
def test_what_cannot_be_sent_is_refused_by_name(twin: Any, words: str) -> None:
    """The message is named; nothing is cut to fit."""
    with pytest.raises(codec.WireError, match=words):
        codec.encode(twin)


def test_a_number_that_an_enum_does_not_know_is_refused_with_the_remedy() -> None:
    """A newer peer's value is not guessed at."""
    data = b"\x08\x63"
    with pytest.raises(codec.WireError, match=r"BudgetCharge\.kind is 99.*upgrade this side"):
        codec.decode(BudgetCharge, data)


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_random_bytes_are_a_message_or_refused(data: bytes) -> None:
    """Nothing but WireError ever comes out of decoding."""
    for kind in (SessionRequest, SessionResponse):
        try:
            twin = codec.decode(kind, data)
        except codec.WireError:
            continue
        assert isinstance(twin, kind)


@given(twins("SessionRequest"), st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_damaged_message_is_a_message_or_refused(twin: SessionRequest, data: Any) -> None:
    """A changed byte gives another message or WireError, never another error."""
    encoded = bytearray(codec.encode(twin))
    if encoded:
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(codec.WireError):
        assert isinstance(codec.decode(SessionRequest, bytes(encoded)), SessionRequest)


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    """A field that this release does not know leaves the rest readable."""
    newer = codec.encode(Fence(epoch=5)) + b"\xba\x06\x03abc"
    assert codec.decode(Fence, newer) == Fence(epoch=5)
