"""What a rank lists for a save: views of its own memory, found without any other rank."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from megatron_worlds.worlds import Worlds

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    "setup",
    [
        {"tensor": 2, "gated": True, "precision": "bf16"},
        {"pipeline": 2, "tied": True, "buckets": 3000},
        {"expert": 2, "experts": 4},
    ],
    ids=["tensor", "pipeline", "experts"],
)
def test_one_rank_alone_lists_views_of_its_memory(worlds: Worlds, setup: dict[str, Any]) -> None:
    """No collective, which would wait for ever here; no copy; each element on one rank."""
    ranks = worlds.run(world=4, job="alone", setup=setup)
    counts: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    seen = set()
    for rank in ranks:
        assert rank["strangers"] == []
        for name, shape, offsets, sizes in rank["boxes"]:
            assert shapes.setdefault(name, shape) == shape
            assert (name, tuple(offsets)) not in seen
            seen.add((name, tuple(offsets)))
            counts[name] = counts.get(name, 0) + prod(sizes)
    assert counts == {name: prod(shape) for name, shape in shapes.items()}
    largest = max(sum(prod(box[3]) for box in rank["boxes"]) for rank in ranks)
    assert largest < 0.6 * sum(counts.values()), "the ranks share the work"
