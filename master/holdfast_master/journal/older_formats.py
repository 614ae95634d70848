"""Reads records of journals of format 3 and older, whose messages had a field for each tier.

Belongs here: fields that are reserved by now, and the messages by tier that they become. Does not
belong here: files (see `segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from holdfast_wire import codec
from holdfast_wire.messages import JournalRecord, Tier

_Key = TypeVar("_Key")
NEWEST: Final = 3
"""The newest format with such fields."""
_PARTS: Final = ("spec", "world", "assigned", "schedule")
"""Fields of facts that hold a message with fields of each tier."""


def decode(data: bytes) -> JournalRecord:
    """Return the record that a journal of an older format holds.

    Args:
        data: Protobuf's binary form.

    Returns:
        The record, as this release would write it.

    Raises:
        WireError: `data` is no record, or has a value that only a newer release knows.
    """
    record = codec.parse(JournalRecord, data)
    for message in _messages(record):
        rewrite = _REWRITES.get(message.DESCRIPTOR.name)
        if rewrite is not None:
            rewrite(message)
    found: JournalRecord = codec.from_proto(record)
    return found


def _messages(record: Any) -> Iterator[Any]:
    """Yield the record's fact and the messages in it that may have a field of each tier."""
    name = record.WhichOneof("fact")
    if name is None:
        return
    fact = getattr(record, name)
    yield fact
    for part in _PARTS:
        if part in fact.DESCRIPTOR.fields_by_name and fact.HasField(part):
            yield getattr(fact, part)


def _old(message: Any, numbers: Mapping[int, _Key]) -> dict[_Key, int]:
    """Return the values of fields that are reserved by now; 0 for one that is absent."""
    found = codec.unknown_numbers(message)
    return {key: found.get(number, 0) for number, key in numbers.items()}


def _intervals(memory: int, storage: int) -> Callable[[Any], None]:
    """Return a function that makes intervals of the fields with these numbers."""

    def rewrite(message: Any) -> None:
        every = _old(message, {memory: Tier.MEMORY, storage: Tier.STORAGE})
        holder = message.checkpoint if message.DESCRIPTOR.name == "MasterSpec" else message
        if any(every.values()):
            for tier, steps in every.items():
                holder.intervals.add(tier=int(tier), every=steps)

    return rewrite


def _spec(message: Any) -> None:
    """Make a checkpoint policy of what the spec itself had."""
    _intervals(15, 16)(message)
    for name, number in _old(message, {17: "keep_last", 18: "keep_every"}).items():
        if number:
            setattr(message.checkpoint, name, number)


def _failures(message: Any) -> None:
    for tier, count in _old(message, {46: Tier.MEMORY, 47: Tier.STORAGE}).items():
        if count:
            message.tier_failures.add(tier=int(tier), count=count)


_REWRITES: Final[Mapping[str, Callable[[Any], None]]] = {
    "MasterSpec": _spec,
    "WorldDecided": _intervals(10, 11),
    "ScheduleConfirmed": _intervals(4, 5),
    "JobFolded": _failures,
}
