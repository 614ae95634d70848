"""Frozen twins of `peer.proto`: field for field the same names, nothing computed here."""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages.agent_orders import Arm
from holdfast_wire.messages.checkpoint import CheckpointVersion
from holdfast_wire.messages.fence import Fence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetRoundRequest:
    """GetRoundRequest names who asks."""

    node_rank: int = 0
    fence: Fence | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GetRoundResponse:
    """GetRoundResponse: the newest fence that the asked agent has accepted."""

    fence: Fence | None = None
    has_master: bool = False
    """The asked agent has a master right now."""
    arm: Arm | None = None
    """What the ranks of the fence's round were asked for: a master may end while it tells the
    agents, and ranks that stop at different steps lose what they did since their checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartRequest:
    """DescribePartRequest names a part; the fence is of the round that is to start from it."""

    fence: Fence | None = None
    version: CheckpointVersion | None = None
    rank: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartResponse:
    """DescribePartResponse: pieces of a description, to be put together in their order."""

    table: bytes = b""
    """The shard table, as the rank wrote it."""
    bytes_room: int = 0
    """Bytes that the arena has for values that are no tensors."""
    lengths: tuple[int, ...] = ()
    """Of these values, in the table's order, bytes."""
    hashes: tuple[int, ...] = ()
    """xxh3-64 of each item, in the table's order."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadPartRequest:
    """ReadPartRequest names bytes of a part."""

    fence: Fence | None = None
    version: CheckpointVersion | None = None
    rank: int = 0
    ranges: tuple[ByteRange, ...] = ()
    """In the image of the part, in the order in which they are sent."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """ByteRange: bytes from a begin on."""

    begin: int = 0
    length: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadPartResponse:
    """ReadPartResponse: the next bytes."""

    data: bytes = b""
