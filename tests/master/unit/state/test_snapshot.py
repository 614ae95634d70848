"""Snapshots of the durable state: everything in, everything back, in records of a bounded size."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
import typing
from typing import Any

from holdfast_master.job.state import snapshot
from holdfast_master.job.state.job_state import JobState
from holdfast_wire import codec
from holdfast_wire import messages as wire

_SCALARS: dict[Any, Any] = {bool: True, int: 7, float: 7.5, str: "x"}


def blank() -> JobState:
    """Return a state before any record."""
    return JobState(event_limit=5_000, incident_limit=5_000)


def sample(kind: Any) -> Any:
    """Return a value of a type: no default of it, and with a key of 7 or "x" in a dict."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(kind, types.UnionType):
        return sample(typing.get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[-1]
    if dataclasses.is_dataclass(kind):
        first = dataclasses.fields(kind)[0].name
        hint = typing.get_type_hints(kind)[first]
        return typing.cast("type[Any]", kind)(**{first: sample(hint)} if hint in _SCALARS else {})
    origin, inner = typing.get_origin(kind), [sample(item) for item in typing.get_args(kind)]
    if origin is dict:
        return {inner[0]: inner[1]}
    return {set: set, list: list, collections.deque: collections.deque}[origin](inner)


def full() -> JobState:
    """Return a state in which no durable field has its default."""
    hints = typing.get_type_hints(JobState)
    state = blank()
    for field in dataclasses.fields(state):
        value = sample(hints[field.name])
        default = getattr(state, field.name)
        other = not default if isinstance(default, bool) else value
        assert other != default, field.name
        setattr(state, field.name, other)
    state.event_limit = state.incident_limit = 5_000
    return state


def through_the_disk(state: JobState) -> JobState:
    """Return what a successor reads of a snapshot."""
    again = full()  # the first part replaces whatever was there
    again.charges *= 2
    for part in snapshot.parts_of(state, ()):
        record = codec.decode(wire.JournalRecord, codec.encode(wire.JournalRecord(fact=part)))
        assert isinstance(record.fact, wire.JobFolded)
        snapshot.load(again, record.fact)
    again.sequence, again.job_seconds = state.sequence, state.job_seconds
    return again


def test_every_durable_field_is_in_a_snapshot() -> None:
    """A field that somebody adds to the state is tried here without a change of this test."""
    assert through_the_disk(full()) == full()
    assert through_the_disk(blank()) == blank()


def test_a_snapshot_has_no_field_that_the_state_lacks() -> None:
    """Beside its own three: what nobody fills would be read as empty."""
    its = {field.name for field in dataclasses.fields(wire.JobFolded)} - {
        "first",
        "last",
        "masters",
    }
    assert its == set(snapshot._FORMS)


def test_long_lists_are_spread_over_parts_in_their_order() -> None:
    """Each record stays far below the longest that is read; the last part says so."""
    state = blank()
    state.nodes = {rank: wire.NodeJoined(node_rank=rank) for rank in range(2_500)}
    state.charges = [wire.BudgetCharge(incident_id=f"i{at}") for at in range(1_001)]
    masters = (wire.PastMaster(epoch=1), wire.PastMaster(epoch=2))
    parts = list(snapshot.parts_of(state, masters))
    assert [len(part.nodes) + len(part.charges) for part in parts] == [0, 1000, 1000, 500, 1000, 1]
    assert [part.first for part in parts] == [True, *[False] * 5]
    assert [part.last for part in parts] == [*[False] * 5, True]
    assert [part.masters for part in parts] == [masters, *[()] * 5]
    assert list(through_the_disk(state).nodes) == list(range(2_500))


def test_a_copy_does_not_follow_the_state() -> None:
    """A thread writes the copy while the loop changes the state."""
    state = full()
    copy = snapshot.copied(state)
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if hasattr(value, "clear"):
            value.clear()
    assert copy == full()


def test_a_projection_has_the_fields_that_both_have() -> None:
    """A field that agents keep of the state bears the state's name."""
    shared = snapshot.project(full(), wire.StateDigest)
    assert {"sequence", "spec", "charges", "event_sequence"} <= set(shared)
    assert all(value == getattr(full(), name) for name, value in shared.items())
