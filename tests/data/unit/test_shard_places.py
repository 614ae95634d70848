"""States of readers in checkpoints: which are refused, and how they are dealt out by place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.data import shard_state
from holdfast.data.shard_link import ShardError
from holdfast.data.shard_state import DoneShards, ReaderState
from holdfast.data.shards import ShardReader
from holdfast.flash.trainer import restore
from holdfast_wire.messages import ShardRange

NAMES = [f"shard-{index}" for index in range(100)]


def read(_: str, start: int) -> range:
    """Return three records."""
    return range(start, 3)


def reader(number: int, readers: int) -> ShardReader[int]:
    """Return a reader with a place."""
    return ShardReader(NAMES, read, place=(number, readers))


def state_of(number: int, readers: int, *done: int, held: dict[int, int] | None = None) -> Any:
    """Return what a reader's checkpoint says."""
    plain = reader(number, readers).state_dict()
    spans = tuple(ShardRange(first=one, count=1, stride=1) for one in done)
    found = ReaderState(
        name=plain["name"],
        digest=plain["digest"],
        done=spans,
        held=held or {},
        number=number,
        world=readers,
    )
    return found.as_plain()


def restored(states: dict[int, Any], old: int, owners: dict[int, ShardReader[int]]) -> list[Any]:
    """Have each rank of a world take its state of a checkpoint, as its start does.

    states: by rank of the world that saved.
    """
    values = {f"rank_{rank}.shards": one for rank, one in states.items()}
    found = []
    for rank, owner in owners.items():
        place = SimpleNamespace(rank=rank, world=len(owners))
        filling: Any = SimpleNamespace(place=place, values=values, world=old, notes=[])
        given = restore._of_rank(filling, f"rank_{rank}.shards", "shards", owner)
        assert given is not None, filling.notes
        owner.load_state_dict(given[0])
        found.append(shard_state.of_plain(given[0]))
    return found


def claimed(states: list[ReaderState]) -> tuple[list[int], dict[int, int]]:
    """Return the shards that readers had done, and those that they hold."""
    done = sorted(one for each in states for one in DoneShards(each.done))
    return done, {ordinal: at for each in states for ordinal, at in each.held.items()}


def saved(readers: int, ranks: int) -> dict[int, Any]:
    """Return the states of a world whose first ranks read; the others gave the same places."""
    return {
        rank: state_of(rank % readers, readers, rank, held={10 + rank: 2})
        if rank < readers
        else state_of(rank % readers, readers)
        for rank in range(ranks)
    }


@pytest.mark.parametrize(("readers", "ranks"), [(2, 4), (4, 4), (4, 8), (2, 8), (6, 6)], ids=str)
def test_readers_of_a_world_of_another_layout_claim_all_that_the_old_ones_did(
    monkeypatch: pytest.MonkeyPatch, readers: int, ranks: int
) -> None:
    """Also those that are fewer than the ranks, or in a world of the same size."""
    monkeypatch.setenv("HOLDFAST_DATA", "/nowhere")
    owners = {rank: reader(rank % readers, readers) for rank in range(ranks)}
    found = restored(saved(4, 8), 8, owners)
    assert claimed(found[:readers]) == ([0, 1, 2, 3], {10: 2, 11: 2, 12: 2, 13: 2})


def test_readers_on_other_ranks_have_the_states_of_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a world of the same size, too: the state of a rank may be of another reader."""
    monkeypatch.setenv("HOLDFAST_DATA", "/nowhere")
    owners = {rank: reader(rank // 2, 4) for rank in range(8)}
    found = restored(saved(4, 8), 8, owners)
    assert claimed(found[::2]) == ([0, 1, 2, 3], {10: 2, 11: 2, 12: 2, 13: 2})


def test_the_farther_of_two_states_of_one_reader_counts() -> None:
    """A rank that does not read keeps what it was given, while the reader goes on."""
    stale, fresh = state_of(0, 2, held={7: 1, 8: 0}), state_of(0, 2, 7, held={8: 5})
    other = state_of(1, 2)
    found = [
        shard_state.of_plain(reader(number, 3).reshard([stale, other, fresh]))
        for number in range(3)
    ]
    assert claimed(found) == ([7], {8: 5})


def test_a_state_of_another_count_of_readers_is_refused() -> None:
    """It is a part of what there is to claim."""
    with pytest.raises(ShardError, match=r"one of 4 readers, and this is one of 2"):
        reader(0, 2).load_state_dict(state_of(0, 4))


def test_a_checkpoint_of_another_list_is_refused() -> None:
    """Its ordinals mean other shards."""
    state = ShardReader(NAMES, read, seed=7).state_dict()
    with pytest.raises(ShardError, match="another list"):
        ShardReader(NAMES[1:], read, seed=7).load_state_dict(state)
    with pytest.raises(ShardError, match="another list"):
        ShardReader(NAMES, read, seed=8).load_state_dict(state)


def test_a_state_is_loaded_before_the_first_record() -> None:
    """Afterwards it would be mixed with what was read."""
    shards = ShardReader(NAMES, read)
    state = shards.state_dict()
    shards.load_state_dict(state)
    next(shards)
    with pytest.raises(ShardError, match="begun"):
        shards.load_state_dict(state)
