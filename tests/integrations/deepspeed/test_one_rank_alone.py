"""A rank lists what it saves by itself: no other takes part, and it has its own share only."""

from __future__ import annotations

import pytest

from checkpoints.deepspeed_world import DeepSpeedWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]
OF_EACH = 3
"""Tensors with one number for each element of a parameter: master and two moments."""


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_has_its_own_share_and_calls_no_collective(
    worlds: DeepSpeedWorlds, stage: int
) -> None:
    """The shares are disjoint and whole. With a collective, one rank would wait for the others.

    The others wait in a barrier meanwhile: gloo would take another collective for it, and fail.
    """
    ranks = worlds.run(job="alone", stage=stage, world=3, groups=True)
    total = ranks[0]["total"]
    assert sum(rank["count"] for rank in ranks) == OF_EACH * total
    most = OF_EACH * (total / len(ranks) + 20)  # padding is in no box, and shifts the ranges
    assert all(0 < rank["count"] <= most for rank in ranks)
