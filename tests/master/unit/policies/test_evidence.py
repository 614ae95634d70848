"""The cut of evidence that is too much to keep."""

from __future__ import annotations

from holdfast_master.job.incidents.reported import cut_evidence
from holdfast_wire.messages import RankEvidence


def test_evidence_within_the_bound_is_whole_and_in_order() -> None:
    """As it came, by rank."""
    ranks = [RankEvidence(rank=rank, stack="x" * 100) for rank in (2, 0, 1)]
    assert cut_evidence(ranks, [1], most=300) == tuple(sorted(ranks, key=lambda one: one.rank))


def test_too_long_stacks_are_cut_but_for_the_odd_ranks() -> None:
    """Each of the others keeps its share, and says that it was cut."""
    ranks = [RankEvidence(rank=rank, stack="x" * 1000) for rank in range(10)]
    kept = cut_evidence(ranks, [3], most=2000)
    assert [len(one.stack) for one in kept] == [200] * 3 + [1000] + [200] * 6
    assert kept[0].stack.endswith("(cut: the stacks of all ranks are too long)")


def test_the_odd_ranks_of_a_world_that_is_odd_as_a_whole_are_bounded() -> None:
    """Sixteen are whole: where all are odd, no one of them is."""
    ranks = [RankEvidence(rank=rank, stack="x" * 1000) for rank in range(100)]
    kept = cut_evidence(ranks, range(100), most=10_000)
    assert sum(len(one.stack) == 1000 for one in kept) == 16
