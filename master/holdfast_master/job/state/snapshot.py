"""Snapshots of the durable state: `JobState` as a sequence of `JobFolded` records, and back."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from holdfast_master.job.state.job_state import JobState
from holdfast_master.policies.data import ledger_message
from holdfast_master.policies.data.ledger import Ledger
from holdfast_master.policies.goodput import MICROS, Totals, from_entries
from holdfast_wire.messages import GoodputEntry, JobFolded, PastMaster

PART_ITEMS: Final = 1_000
"""Items of lists in one part: keeps each record far below the longest that is read."""
_NOT_FOLDED: Final = frozenset(
    {"sequence", "job_seconds", "unix_time", "event_limit", "incident_limit"}
)
"""Fields that a snapshot leaves out: each record carries the first three, settings the others."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Container:
    """A set, list or dict of the state, which is a list in `JobFolded`."""

    items: Callable[[Any], Iterable[Any]]
    """Returns what the list holds."""
    fill: Callable[[Any, Any], None]
    """Puts the list's items into the state's container."""
    spread: bool
    """It may be long: it has parts of its own."""


def _classes(totals: Totals) -> tuple[GoodputEntry, ...]:
    # Not `entries`: a class that was named with nothing in it stays named.
    return tuple(
        GoodputEntry(kind=kind, node_seconds=spent / MICROS) for kind, spent in totals.items()
    )


_OTHER_FORMS: Final[dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    Totals: (_classes, from_entries),
}
"""Values of the state that a message holds in another form: to the message, and back."""


def _container(kind: Any, item: Any) -> _Container | None:
    """The form of a field of type `kind` as a list of `item`; None: it is no container."""
    origin = typing.get_origin(kind)
    if origin is set:
        return _Container(sorted, lambda into, items: into.update(items), spread=False)
    if origin in {list, collections.deque}:
        return _Container(list, lambda into, items: into.extend(items), spread=True)
    return _dict(typing.get_args(kind)[1], item) if origin is dict else None


def _dict(value: Any, item: Any) -> _Container:
    """The form of a dict: its values, its keys, or a message for each pair.

    The first field of a message is the key. The second is the value, unless the message is.
    """
    if value is bool:
        return _Container(list, lambda into, keys: into.update(dict.fromkeys(keys, True)), False)
    key, *others = [field.name for field in dataclasses.fields(item)]
    if value is item:
        return _Container(
            lambda known: known.values(),
            lambda into, items: into.update({getattr(each, key): each for each in items}),
            spread=True,
        )
    if value is Ledger:
        return _Container(
            lambda known: [ledger_message.message_of(one) for one in known.values()],
            lambda into, items: into.update(
                {one.name: ledger_message.of_message(one) for one in items}
            ),
            spread=True,
        )
    second = others[0]
    there, back = _OTHER_FORMS.get(value, (_same, _same))
    return _Container(
        lambda known: [item(**{key: k, second: there(v)}) for k, v in known.items()],
        lambda into, items: into.update(
            {getattr(each, key): back(getattr(each, second)) for each in items}
        ),
        spread=True,
    )


def _same(value: Any) -> Any:
    return value


def _forms() -> dict[str, _Container | None]:
    """The form of each durable field; None: the same value stands in `JobFolded`.

    Raises:
        KeyError: `JobFolded` has no field of a durable field's name.
    """
    mine, its = typing.get_type_hints(JobState), typing.get_type_hints(JobFolded)
    names = [field.name for field in dataclasses.fields(JobState)]
    return {
        name: _container(mine[name], next(iter(typing.get_args(its[name])), None))
        for name in names
        if name not in _NOT_FOLDED
    }


_FORMS: Final = _forms()


def copied(state: JobState) -> JobState:
    """A state that later facts do not change; copies each container, and items that change."""
    changes = {name: getattr(state, name).copy() for name, form in _FORMS.items() if form}
    changes["ledgers"] = {name: one.copy() for name, one in state.ledgers.items()}
    return dataclasses.replace(state, **changes)


def project(state: JobState, kind: type) -> dict[str, Any]:
    """The durable fields that a message of class `kind` has as well, by name."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {
        field.name: getattr(state, field.name)
        for field in dataclasses.fields(state)
        if field.name in names
    }


def parts_of(state: JobState, masters: Iterable[PastMaster]) -> Iterator[JobFolded]:
    """Yield the state in parts; `load` of all of them into a blank state restores it.

    masters: those whose records the snapshot stands for, oldest first.
    """
    head: dict[str, Any] = {"first": True, "masters": tuple(masters)}
    pieces: list[dict[str, Any]] = [head]
    for name, form in _FORMS.items():
        value = getattr(state, name)
        if form is None:
            head[name] = value
            continue
        items = tuple(form.items(value))
        if not form.spread:
            head[name] = items
            continue
        starts = range(0, len(items), PART_ITEMS)
        pieces += [{name: items[start : start + PART_ITEMS]} for start in starts]
    for at, piece in enumerate(pieces, start=1):
        yield JobFolded(**piece, last=at == len(pieces))


def load(state: JobState, part: JobFolded) -> None:
    """Take one part in; the first one replaces everything that was there."""
    for name, form in _FORMS.items():
        value = getattr(part, name)
        if form is None:
            if part.first:
                setattr(state, name, value)
            continue
        known = getattr(state, name)
        if part.first:
            known.clear()
        if value:
            form.fill(known, value)
    state.trim()
