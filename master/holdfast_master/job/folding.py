"""The durable state as one message in parts, and back: what stands at the head of a short journal.

Belongs here: every field of `JobState`, there and back. Does not belong here: what a fact means
(`state`), files, and when a base is worth writing.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast_master.decide.goodput import MICROS, Totals, from_entries
from holdfast_wire.messages import (
    AgentDismissed,
    GoodputEntry,
    JobFolded,
    NodeCounted,
    NodeExcluded,
    NodeGoodput,
    PastMaster,
    WorldEnded,
)

if TYPE_CHECKING:
    from holdfast_master.job.state import JobState

PART_ITEMS = 1_000
"""Items of lists in one part: keeps each record far below the longest that is read."""
_LISTS = (
    "nodes",
    "departed",
    "dismissed",
    "excluded",
    "worlds_ended",
    "charges",
    "incidents",
    "events",
    "commands",
    "goodput",
    "counted",
)
"""Fields of JobFolded that grow with the job; the others are in the first part."""
_SAME = (
    "epoch",
    "started_unix",
    "finished_unix",
    "spec",
    "phase",
    "reason",
    "text",
    "active_since",
    "stop",
    "round",
    "world",
    "assigned",
    "vacant",
    "assigned_replicas",
    "training",
    "ended",
    "best_step",
    "failed_step",
    "incident_count",
    "event_sequence",
    "next_command_id",
    "restarts_in_place",
    "nodes_replaced",
    "nodes_disrupted",
    "rescales",
    "checkpoint",
    "schedule",
    "memory_failures",
    "storage_failures",
    "trained_seconds",
    "trains_since",
)
"""Fields that both have, of the same meaning."""


def copied(state: JobState) -> JobState:
    """A state that later facts do not change; costs a copy of each container, of no item."""
    containers = (dict, list, set, collections.deque)
    changes: dict[str, Any] = {
        field.name: value.copy()
        for field in dataclasses.fields(state)
        if isinstance(value := getattr(state, field.name), containers)
    }
    return dataclasses.replace(state, **changes)


def fold_out(state: JobState, masters: Iterable[PastMaster]) -> Iterator[JobFolded]:
    """Give the state in parts; `fold_in` of all of them into a blank state gives it back."""
    lists = _lists(state)
    first = {name: getattr(state, name) for name in _SAME}
    head: dict[str, Any] = {
        **first,
        "first": True,
        "draining": tuple(sorted(state.draining)),
        "promised": tuple(sorted(state.promised)),
        "finished": tuple(sorted(state.finished)),
        "released": tuple(sorted(state.released)),
        "trained_rounds": tuple(state.trained_rounds),
        "masters": tuple(masters),
    }
    pieces = [
        {name: tuple(items[start : start + PART_ITEMS])}
        for name, items in lists.items()
        for start in range(0, len(items), PART_ITEMS)
    ]
    for at, piece in enumerate([head, *pieces]):
        yield JobFolded(**piece, last=at == len(pieces))


def _lists(state: JobState) -> dict[str, list[Any]]:
    return {
        "nodes": list(state.nodes.values()),
        "departed": list(state.departed.values()),
        "dismissed": [AgentDismissed(agent_id=a, mark=m) for a, m in state.dismissed.items()],
        "excluded": [NodeExcluded(node=node, reason=why) for node, why in state.excluded.items()],
        "worlds_ended": [WorldEnded(round=r, step=step) for r, step in state.ended_steps.items()],
        "charges": list(state.charges),
        "incidents": list(state.incidents.values()),
        "events": list(state.events),
        "commands": list(state.commands.values()),
        "goodput": [_goodput(rank, totals) for rank, totals in state.goodput.items()],
        "counted": [NodeCounted(node_rank=r, unix_time=at) for r, at in state.counted_unix.items()],
    }


def _goodput(rank: int, totals: Totals) -> NodeGoodput:
    # Not `entries`: a class that was named with nothing in it stays named.
    classes = tuple(
        GoodputEntry(kind=kind, node_seconds=spent / MICROS) for kind, spent in totals.items()
    )
    return NodeGoodput(node_rank=rank, classes=classes)


def fold_in(state: JobState, part: JobFolded) -> None:
    """Take one part; the first one takes the place of everything that was there."""
    if part.first:
        _begin(state, part)
    state.nodes.update({item.node_rank: item for item in part.nodes})
    state.departed.update({item.node_rank: item for item in part.departed})
    state.dismissed.update({item.agent_id: item.mark for item in part.dismissed})
    state.excluded.update({item.node: item.reason for item in part.excluded})
    state.ended_steps.update({item.round: item.step for item in part.worlds_ended})
    state.charges.extend(part.charges)
    state.incidents.update({item.id: item for item in part.incidents})
    state.events.extend(part.events)
    state.commands.update({item.command_id: item for item in part.commands})
    state.goodput.update({item.node_rank: from_entries(item.classes) for item in part.goodput})
    state.counted_unix.update({item.node_rank: item.unix_time for item in part.counted})
    trim(state.incidents, state.incident_limit)
    while len(state.events) > state.event_limit:
        state.events.popleft()


def trim(kept: dict[Any, Any], limit: int) -> None:
    """Drop the oldest entries beyond this many."""
    while len(kept) > limit:
        del kept[next(iter(kept))]


def _begin(state: JobState, part: JobFolded) -> None:
    for field in dataclasses.fields(state):
        made = field.default_factory
        if made is not dataclasses.MISSING:
            setattr(state, field.name, made())
    for name in _SAME:
        setattr(state, name, getattr(part, name))
    state.draining.update(part.draining)
    state.promised.update(part.promised)
    state.finished.update(part.finished)
    state.released.update(part.released)
    state.trained_rounds.update(dict.fromkeys(part.trained_rounds, True))


def past_masters(parts: Iterable[JobFolded]) -> tuple[PastMaster, ...]:
    """The masters whose records a base stands for, oldest first."""
    return tuple(item for part in parts for item in part.masters)
