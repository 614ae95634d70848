"""Conversion between protobuf messages and their frozen twins.

Beside the gRPC shells, this is the only module that knows protobuf. A converter is compiled for
each twin class at its first use, so that a heartbeat costs a few attribute reads. A value is either
converted or refused; its meaning does not belong here.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast_wire import messages

Twin = TypeVar("Twin")
Decode = Callable[[Any], Any]
"""Wire type of whole numbers."""


class WireError(ValueError):
    """A message cannot be converted; the text names the message, the field and the value."""


class NewerError(WireError):
    """A message has a value that only a newer release knows."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Converter:
    to_proto: Callable[[Any], Message]
    from_proto: Callable[[Any], Any]


@functools.cache
def proto_of(name: str) -> type[Message]:
    """The protobuf class of a message, by its name and its twin's; imported at the first use."""
    module = importlib.import_module(f"holdfast_wire.v1.{messages.MESSAGES[name]}_pb2")
    found: type[Message] = getattr(module, name)
    return found


def to_proto(twin: object) -> Any:
    """The protobuf message of a twin.

    Raises:
        WireError: the argument is no twin, or protobuf refuses a value, such as a negative count.
    """
    name = type(twin).__name__
    try:
        return _converter(name).to_proto(twin)
    except (TypeError, ValueError) as error:
        raise WireError(f"{name} cannot be encoded: {error}") from error


def from_proto(message: Message) -> Any:
    """The twin of a protobuf message.

    Raises:
        NewerError: an enum has a number that this release does not know.
    """
    return _converter(type(message).__name__).from_proto(message)


def encode(twin: object) -> bytes:
    """The wire bytes of a twin.

    Raises:
        WireError: as for `to_proto`.
    """
    data: bytes = to_proto(twin).SerializeToString()
    return data


def encode_received(
    moment: tuple[float, float], sequence: int, instructions: int, session: int, request: bytes
) -> bytes:
    """The wire bytes of an InputRecorded with an agent's message, without a twin.

    There are a thousand per second, and this takes a quarter of the time.

    moment: monotonic and wall clock, s. sequence: of the journal's newest record after the message.
    instructions: how many followed from it. session: number of the agent's stream. request: the
    SessionRequest, as received.
    """
    proto: Any = proto_of("InputRecorded")
    recorded: Message = proto(
        mono=moment[0],
        unix_time=moment[1],
        sequence=sequence,
        instructions=instructions,
        agent_said={"session": session, "request": request},
    )
    return recorded.SerializeToString()


def decode(kind: type[Twin], data: bytes) -> Twin:
    """The twin in wire bytes, without fields that this release does not know.

    Raises:
        NewerError: an enum has a number that this release does not know.
        WireError: `data` is no such message.
    """
    twin: Twin = from_proto(parse(kind, data))
    return twin


def parse(kind: type[Any], data: bytes) -> Any:
    """The protobuf message in wire bytes, by the class of its twin.

    Raises:
        WireError: `data` is no such message.
    """
    proto = proto_of(kind.__name__)()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no {kind.__name__}: {error}") from error
    return proto


@functools.cache
def _converter(name: str) -> _Converter:
    if name not in messages.MESSAGES:
        raise WireError(f"{name} is not a message of holdfast.v1")
    twin, proto = getattr(messages, name), proto_of(name)
    hints = typing.get_type_hints(twin)
    oneofs = _oneofs(proto)
    plain = [field.name for field in dataclasses.fields(twin) if field.name not in oneofs]
    optional = frozenset(name for name in plain if _is_optional(hints[name]))
    return _Converter(
        _compile_encode(proto, {name: hints[name] for name in plain}, optional, oneofs),
        _compile_decode(twin, {name: hints[name] for name in plain}, optional, oneofs),
    )


def _compile_encode(
    proto: type[Message],
    plain: Mapping[str, Any],
    optional: frozenset[str],
    oneofs: dict[str, dict[str, str]],
) -> Callable[[Any], Message]:
    encoders = [(name, _field_encoder(hint), name in optional) for name, hint in plain.items()]

    def encode_twin(value: Any) -> Message:
        given: dict[str, Any] = {}
        for name, encoder, presence in encoders:
            field = getattr(value, name)
            if field:
                given[name] = field if encoder is None else encoder(field)
            elif presence and field is not None:
                given[name] = field
        for group, names in oneofs.items():
            chosen = getattr(value, group)
            if chosen is not None:
                given[names[type(chosen).__name__]] = to_proto(chosen)
        return proto(**given)

    return encode_twin


def _compile_decode(
    twin: type[Any],
    plain: Mapping[str, Any],
    optional: frozenset[str],
    oneofs: dict[str, dict[str, str]],
) -> Callable[[Any], Any]:
    """A function that makes a twin slot by slot.

    A frozen class's own constructor costs three times as much, and most of a master's work for ten
    thousand agents is decoding heartbeats.
    """
    put = {name: twin.__dict__[name].__set__ for name in (*plain, *oneofs)}
    decoders = {name: _field_decoder(twin.__name__, name, hint) for name, hint in plain.items()}
    copied = [name for name in plain if name not in optional and decoders[name] is _same]
    get_copied, put_copied = _getter(copied), [put[name] for name in copied]
    others = [
        (put[name], name, decoders[name], name in optional) for name in plain if name not in copied
    ]
    groups = [(put[group], group) for group in oneofs]

    def decode_proto(message: Any) -> Any:
        made = object.__new__(twin)
        for put_value, value in zip(put_copied, get_copied(message), strict=True):
            put_value(made, value)
        for put_value, name, decoder, presence in others:
            known = not presence or message.HasField(name)
            put_value(made, decoder(getattr(message, name)) if known else None)
        for put_value, group in groups:
            chosen = message.WhichOneof(group)
            put_value(made, None if chosen is None else from_proto(getattr(message, chosen)))
        return made

    return decode_proto


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads these attributes."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


def _oneofs(proto: type[Message]) -> dict[str, dict[str, str]]:
    # The stubs' descriptors are incomplete. A proto3 optional is a oneof whose name begins with _.
    descriptor: Any = proto.DESCRIPTOR
    return {
        group.name: {field.message_type.name: field.name for field in group.fields}
        for group in descriptor.oneofs
        if not group.name.startswith("_")
    }


def _is_optional(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)


def _without_none(hint: Any) -> Any:
    if not _is_optional(hint):
        return hint
    return next(part for part in typing.get_args(hint) if part is not type(None))


def _field_encoder(hint: Any) -> Callable[[Any], Any] | None:
    """The function from a field's value to protobuf's; None: they are the same."""
    hint = _without_none(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = _field_encoder(typing.get_args(hint)[0])
        return None if item is None else lambda values: [item(value) for value in values]
    if origin is not None:
        return None
    if dataclasses.is_dataclass(hint):
        return to_proto
    return int if issubclass(hint, enum.IntEnum) else None


def _field_decoder(owner: str, name: str, hint: Any) -> Decode:
    hint = _without_none(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = _field_decoder(owner, name, typing.get_args(hint)[0])
        return lambda values: tuple([item(value) for value in values])
    if origin is not None:
        return dict
    if dataclasses.is_dataclass(hint):
        return from_proto
    if issubclass(hint, enum.IntEnum):
        return _enum_decoder(owner, name, hint)
    return _same


def _enum_decoder(owner: str, name: str, kind: type[enum.IntEnum]) -> Decode:
    known = {int(member): member for member in kind}

    def decode_enum(value: int) -> enum.IntEnum:
        member = known.get(value)
        if member is None:
            raise NewerError(
                f"{owner}.{name} is {value}, which is no {kind.__name__} of this release; "
                "the peer may be newer: upgrade this side"
            )
        return member

    return decode_enum


def _same(value: Any) -> Any:
    return value
