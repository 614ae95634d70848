"""Progress of a reader as values: few ranges, whatever order its shards come in."""

from __future__ import annotations

from holdfast.data.shard_state import DoneShards


def test_done_shards_are_few_ranges() -> None:
    """Of one reader they come in steps."""
    done = DoneShards()
    for ordinal in [*range(3, 300, 4), 1000, 1001]:
        done.add(ordinal)
    assert len(done.ranges) == 2
    assert 7 in done
    assert 8 not in done
    done.drop_before(296)
    assert list(done) == [299, 1000, 1001]
    done.drop_before(2000)
    assert list(done) == []
