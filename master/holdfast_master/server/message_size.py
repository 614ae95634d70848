"""Keeps answers about very large jobs inside one message. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from holdfast_wire import codec, keys
from holdfast_wire.messages import IncidentEvidence, JobEvent, ListNodesResponse, NodeInfo

_ROOM_BYTES = keys.MAX_MESSAGE_BYTES * 3 // 4
"""For the nodes; the rest is for status and events of a snapshot."""
_FRAME_BYTES = 6
"""Around each event in a list."""
_SMALL = 1_000
"""So many nodes with eight ranks each fit without being measured."""
_FEW_EVENTS = 500
"""So many of the longest events fit without being measured."""


def events_fitting(events: tuple[JobEvent, ...]) -> tuple[JobEvent, ...]:
    """The first of `events`, as many as fit into one message."""
    if len(events) <= _FEW_EVENTS:
        return events
    return events[: _count_fitting(events)]


def ranks_fitting(evidence: IncidentEvidence, skip: int) -> tuple[IncidentEvidence, bool]:
    """Return evidence with as many ranks after the first `skip` as fit, and whether more follow.

    One rank always fits: a stack has 64 KiB at the most.
    """
    rest = evidence.ranks[skip:]
    count = max(1, _count_fitting(rest))
    return dataclasses.replace(evidence, ranks=rest[:count]), count < len(rest)


def _count_fitting(parts: Iterable[object]) -> int:
    """How many of the first parts fit; each is measured until one does not."""
    sizes = itertools.accumulate(len(codec.encode(part)) + _FRAME_BYTES for part in parts)
    return sum(1 for _ in itertools.takewhile(lambda size: size <= _ROOM_BYTES, sizes))


def fitting(nodes: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
    """Return `nodes`, without their ranks where they would not fit into one message."""
    if len(nodes) <= _SMALL or len(codec.encode(ListNodesResponse(nodes=nodes))) <= _ROOM_BYTES:
        return nodes
    return tuple(dataclasses.replace(node, ranks=()) for node in nodes)
