"""Keeps answers about very large jobs inside one message. Pure."""

from __future__ import annotations

import dataclasses

from holdfast_wire import codec, keys
from holdfast_wire.messages import ListNodesResponse, NodeInfo

_ROOM_BYTES = keys.MAX_MESSAGE_BYTES * 3 // 4
"""For the nodes; the rest is for status and events of a snapshot."""
_SMALL = 1_000
"""So many nodes with eight ranks each fit without being measured."""


def fitting(nodes: tuple[NodeInfo, ...]) -> tuple[NodeInfo, ...]:
    """Return `nodes`, without their ranks where they would not fit into one message."""
    if len(nodes) <= _SMALL or len(codec.encode(ListNodesResponse(nodes=nodes))) <= _ROOM_BYTES:
        return nodes
    return tuple(dataclasses.replace(node, ranks=()) for node in nodes)
