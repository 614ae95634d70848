"""The question of a node to its master at a start, by tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast_wire.messages import CheckpointVersion, RestoreRequest, Tier, TierVersions


def restore_request(
    *,
    memory: Iterable[CheckpointVersion] = (),
    storage: Iterable[CheckpointVersion] = (),
    **more: Any,
) -> RestoreRequest:
    """Return the request of a node that could take these versions, newest first, from each tier."""
    offers = (
        TierVersions(tier=Tier.MEMORY, versions=tuple(memory)),
        TierVersions(tier=Tier.STORAGE, versions=tuple(storage)),
    )
    return RestoreRequest(offers=offers, **more)
