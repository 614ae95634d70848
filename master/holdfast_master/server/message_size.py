"""Keeps answers about very large jobs inside one message. Pure."""

from __future__ import annotations

import dataclasses

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
    room = _ROOM_BYTES
    for count, event in enumerate(events):
        room -= len(codec.encode(event)) + _FRAME_BYTES
        if room < 0:
            return events[:count]
    return events


def ranks_fitting(evidence: IncidentEvidence, skip: int) -> tuple[IncidentEvidence, bool]:
    """Return evidence with as many ranks after the first `skip` as fit, and whether more follow.

    One rank always fits: a stack has 64 KiB at the most.
    """
    rest, room = evidence.ranks[skip:], _ROOM_BYTES
    for count, rank in enumerate(rest):
        room -= len(codec.encode(rank)) + _FRAME_BYTES
        if room < 0 and count:
            return dataclasses.replace(evidence, ranks=rest[:count]), True
    return dataclasses.replace(evidence, ranks=rest), False


def fitting(nodes: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
    """Return `nodes`, without their ranks where they would not fit into one message."""
    if len(nodes) <= _SMALL or len(codec.encode(ListNodesResponse(nodes=nodes))) <= _ROOM_BYTES:
        return nodes
    return tuple(dataclasses.replace(node, ranks=()) for node in nodes)
