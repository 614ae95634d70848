"""Place of a reader in its shards, as it travels with a sum and is told of a lost replica.

Belongs here: values alone. Does not belong here: their way (`places`), reading
(`holdfast.data.shards`).
"""

from __future__ import annotations

from typing import NamedTuple


class ReaderPlace(NamedTuple):
    """How far a reader has read."""

    ordinal: int
    """Of the newest shard that it has begun; those before it in its leases are done."""
    position: int
    """Next record of it; -1: the shard is done."""


class LostPlace(NamedTuple):
    """How far a reader of a lost replica had read."""

    replica: int
    step: int
    """Steps that were applied then."""
    place: ReaderPlace | None
    """None: it had read nothing."""
    epoch: int
    """Of those that met without it."""
