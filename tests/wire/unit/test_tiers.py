"""Checkpoint tiers on the wire: their order, their words, intervals by tier."""

from __future__ import annotations

import pytest

from holdfast_wire import codec
from holdfast_wire.messages import (
    CheckpointVersion,
    RestoreRequest,
    SavingReport,
    SetSchedule,
    Tier,
    TierCost,
    TierInterval,
)
from holdfast_wire.tiers import TIERS, by_tier, costs_by_tier, offered, to_intervals, word
from messages.restores import restore_request


def test_the_nearest_tier_comes_first() -> None:
    """A restore prefers the smaller number, and every tier is in the list."""
    assert TIERS == (Tier.MEMORY, Tier.STORAGE)
    assert set(TIERS) == set(Tier) - {Tier.UNSPECIFIED}
    assert [word(tier) for tier in TIERS] == ["memory", "storage"]


def test_a_tier_that_is_not_named_has_no_interval() -> None:
    """Whatever the order of a message; one without a tier says nothing."""
    told = (TierInterval(tier=Tier.STORAGE, every=7), TierInterval(every=9))
    assert by_tier(told) == {Tier.MEMORY: 0, Tier.STORAGE: 7}
    assert by_tier(()) == dict.fromkeys(TIERS, 0)
    assert to_intervals(by_tier(told)) == (
        TierInterval(tier=Tier.MEMORY, every=0),
        TierInterval(tier=Tier.STORAGE, every=7),
    )


def test_versions_and_costs_are_found_by_tier() -> None:
    """What a node does not name of a tier, it does not have."""
    asked = restore_request(storage=[CheckpointVersion(step=7), CheckpointVersion(step=5)])
    assert [one.step for one in offered(asked, Tier.STORAGE)] == [7, 5]
    assert offered(asked, Tier.MEMORY) == offered(RestoreRequest(), Tier.STORAGE) == ()
    cost = TierCost(tier=Tier.STORAGE, stop_seconds=0.5, every=3)
    found = costs_by_tier(SavingReport(costs=(cost,)))
    assert found == {Tier.MEMORY: TierCost(tier=Tier.MEMORY), Tier.STORAGE: cost}


def test_a_tier_of_a_newer_release_is_refused_by_name() -> None:
    """An older peer does not take it for another, nor leave it out."""
    message = codec.proto_of("SetSchedule")(intervals=[{"tier": 9, "every": 3}])
    with pytest.raises(codec.NewerError, match=r"TierInterval\.tier is 9, which is no Tier"):
        codec.decode(SetSchedule, message.SerializeToString())
