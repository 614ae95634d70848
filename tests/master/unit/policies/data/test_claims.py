"""First words of a reader that make no sense."""

from __future__ import annotations

import pytest

from holdfast_master.policies.data.claims import MOST_SHARDS, problem
from holdfast_wire.messages import ReaderClaim, ReaderOpened, ShardPosition, ShardRange


def opened(claim: ReaderClaim | None, rank: int = 0) -> ReaderOpened:
    """Return the first words of one of two readers of a dataset without an end."""
    return ReaderOpened(dataset="d", shards=10, rank=rank, readers=2, claim=claim)


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (ReaderClaim(held=(ShardPosition(ordinal=10**12),)), "1000000000000 shards from floor=0"),
        (ReaderClaim(done=(ShardRange(first=0, count=2**60, stride=1),)), "shards from floor=0"),
        (ReaderClaim(done=(ShardRange(first=10**12, count=1, stride=1),)), "shards from floor=0"),
        (ReaderClaim(done=(ShardRange(first=4, count=3, stride=0),)), "stride=0"),
    ],
    ids=["far", "many", "gap", "no stride"],
)
def test_a_claim_that_would_stop_the_master_is_a_problem(claim: ReaderClaim, text: str) -> None:
    """An entry for each ordinal before it, or a loop over each that it names."""
    assert text in problem(opened(claim))


def test_a_claim_far_into_endless_data_is_none() -> None:
    """Its floor is near: nothing lies between."""
    done = (ShardRange(first=10**12, count=MOST_SHARDS // 2, stride=2),)
    held = (ShardPosition(ordinal=10**12 + 1),)
    assert not problem(opened(ReaderClaim(step=8, floor=10**12, done=done, held=held)))
    assert not problem(opened(None, rank=1))


def test_a_number_that_is_not_below_the_readers_is_a_problem() -> None:
    """It would count as one of them."""
    assert "reader 2 is not among 2" in problem(opened(None, rank=2))
