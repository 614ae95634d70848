"""Entry into a round by time: the ranks of a replica enter together, or none of them does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.sync.group import SyncError
from holdfast.local_sgd.triggers.by_time import ByTime

CONFIG = LocalSGDConfig(use_async=True, local_sgd_sync_time=1.0, min_total_global_steps=1)


class Ranks:
    """A group whose collectives answer, or fail, as a test says."""

    rank, size = 0, 2

    def __init__(self, *, fails: bool = False, others: float = 0.0) -> None:
        self.fails, self.others = fails, others
        self.votes: list[float] = []

    def gather_scalars(self, values: list[float]) -> list[list[float]]:
        """Return both replicas' words, or fail."""
        if self.fails:
            raise SyncError("a replica is gone")
        return [values, values]

    def max_scalars(self, values: list[float]) -> list[float]:
        """Return the greatest of this rank's and the others'; one value is a vote."""
        if len(values) > 1:
            return values
        self.votes.append(values[0])
        return [max(values[0], self.others)]


def entered(replicas: Ranks, own: Ranks) -> object:
    """Make a step after which the round is due."""
    now = iter((0.0, 9.0, 9.0, 9.0))
    who: Any = SimpleNamespace(group=replicas, own=own, voters=own, has_changed=lambda: False)
    return ByTime(CONFIG, who, store=dist.HashStore(), clock=lambda: next(now)).stepped(1)


def test_a_shard_that_could_not_meet_its_own_keeps_all_shards_out() -> None:
    """This rank's gather succeeded; that of another rank of the replica did not."""
    with pytest.raises(SyncError, match="another rank of this replica"):
        entered(Ranks(), Ranks(others=1.0))


def test_a_rank_whose_gather_fails_tells_the_others_of_its_replica() -> None:
    """They would else go on into the round, or into a forward."""
    own = Ranks()
    with pytest.raises(SyncError, match="a replica is gone"):
        entered(Ranks(fails=True), own)
    assert own.votes == [1.0]
