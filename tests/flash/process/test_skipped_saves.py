"""A scheduled save that gets no memory: training goes on, and everybody hears of it once."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from checkpoints.filled_arenas import grant, layout
from checkpoints.led_nodes import Node, rank_of, received, served
from checkpoints.small_models import opened, state_of, train
from holdfast.flash.memory.arena import RankArena
from holdfast.flash.memory.memory_budget import Room
from holdfast.flash.memory.slots import Version
from holdfast.flash.notices import FailureLog
from holdfast.flash.server.arena_store import ArenaStore, ArenaStoreError
from holdfast.flash.server.protocol import Failed, Layout, NotSaved
from holdfast.flash.trainer.client import CheckpointError
from holdfast_wire.messages import Tier

pytestmark = pytest.mark.train
MEMORY = holdfast.Schedule(memory_every=1, storage_every=0)
STORAGE = holdfast.Schedule(memory_every=0, storage_every=2)


class Stingy:
    """Says how much memory is left: a little less at each look, until it is let."""

    def __init__(self) -> None:
        self.left = itertools.count(200 * 2**20, -(2**20))
        self.source = "a test"
        self.let = False

    def __call__(self) -> Room:
        return Room(available=2**40 if self.let else next(self.left), source=self.source)


@pytest.fixture
def room() -> Stingy:
    """The memory of the node."""
    return Stingy()


@pytest.fixture
def node(tmp_path: Path, room: Stingy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A led keeper that this process's Checkpointers find."""
    with served(tmp_path, room=room) as found:
        monkeypatch.setenv("HOLDFAST_ARENA", found.path)
        yield found


def _steps(flash: holdfast.Checkpointer, state: Any, numbers: range) -> list[str]:
    """Train and step; return the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", RuntimeWarning)
        for number in numbers:
            train(*state)
            flash.step(number)
    return [str(one.message) for one in found if one.category is RuntimeWarning]


def test_it_is_said_once_until_it_changes_counted_and_told_to_the_master(
    node: Node, room: Stingy
) -> None:
    """Numbers are no change; another reason is, and so is a failure after a success."""
    state = state_of()
    with opened(None, state, schedule=MEMORY) as flash:
        said = _steps(flash, state, range(1, 6))
        assert [text.partition(":")[0] for text in said] == ["step 1 was not saved"]
        assert "does not fit" in said[0]
        assert (flash.failed, flash.skipped) == (5, 0)
        told = node.master.hears("written")
        assert (told.version, told.ranks, told.attempt) == (Version(0, 1), (), "w0")
        assert told.error.startswith("rank 0 did not save it: ")
        assert "does not fit" in told.error
        room.source = "another limit"
        assert len(_steps(flash, state, range(6, 9))) == 1
        told = node.master.hears("written")
        assert told.version == Version(0, 6)
        room.let = True
        assert _steps(flash, state, range(9, 11)) == []
        assert flash.failed == 8
        assert node.master.heard_nothing("written")


def test_each_save_that_was_for_storage_is_told_for_others_wait_for_it(
    tmp_path: Path, node: Node, room: Stingy
) -> None:
    """As one that fails on its way there; who asks for a save himself gets the error."""
    state = state_of()
    with opened(tmp_path / "ck", state, schedule=STORAGE) as flash:
        assert len(_steps(flash, state, range(1, 7))) == 1
        told = [node.master.hears("written") for _ in range(3)]
        assert [one.version.step for one in told] == [2, 4, 6]
        assert {one.root for one in told} == {str(tmp_path / "ck")}
        assert flash.failed == 3
        with pytest.raises(CheckpointError, match=r"does not fit"):
            flash.save(7)
        assert flash.failed == 3
        assert node.master.heard_nothing("written")


class Damaging(ArenaStore):
    """Hands out memory that is no arena."""

    def make(self, rank: int, layout: Layout) -> RankArena:
        """Make one, and spoil its first word."""
        held = super().make(rank, layout)
        held.arena.memory[0] ^= 1
        return held


def test_memory_that_is_no_arena_ends_no_training_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer finds it out; no descriptor of it is left open, however often it is offered."""
    state = state_of()
    monkeypatch.setattr("checkpoints.led_nodes.ArenaStore", Damaging)
    with served(tmp_path) as node:
        monkeypatch.setenv("HOLDFAST_ARENA", node.path)
        with opened(None, state, schedule=MEMORY) as flash:
            said = _steps(flash, state, range(1, 3))
            before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            said += _steps(flash, state, range(3, 30))
            assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
            assert len(said) == 1
            assert "no arena of format" in said[0]
            assert flash.failed == 29
            assert "no arena of format" in node.master.hears("written").error
            with pytest.raises(CheckpointError, match="no arena of format"):
                flash.save(30, durable=False)


def test_other_ranks_of_the_node_do_not_wait_for_a_part_that_never_comes(tmp_path: Path) -> None:
    """The rank that has saved the step hears of the failure and its reason."""
    with (
        served(tmp_path) as node,
        rank_of(node, tmp_path, 0, kept=2) as first,
        rank_of(node, tmp_path, 1, kept=2) as second,
    ):
        first.save(Version(1, 7), durable=True)
        second.link.send(NotSaved(lineage=1, step=7, tier=Tier.STORAGE, error="no memory"))
        failed = received(first.link, Failed)
        assert failed == Failed(step=7, error="rank 1 did not save it: no memory")
        assert node.master.hears("written").error == failed.error


def test_what_a_keeper_cannot_make_is_an_error_for_the_trainer_alone() -> None:
    """Also where the system refuses it in a way that nobody thought of."""

    class Nowhere:
        """A place whose disk is gone."""

        def make(self, *_: object) -> Any:
            raise OSError(5, "Input/output error")

        def close(self) -> None:
            """Nothing."""

    arenas = ArenaStore(lambda: Room(available=2**40, source="a test"), backend=Nowhere())  # type: ignore[arg-type]
    with pytest.raises(ArenaStoreError, match=r"rank 0: .*Input/output error"):
        grant(arenas, 0, layout())
    arenas.close()


def test_a_reason_with_other_numbers_is_the_same_one() -> None:
    """A reason that differs only in its numbers is not new. A success makes it new again."""
    trouble = FailureLog()
    texts = ["7 MiB left", "6 MiB left", "the disk is full", "5 MiB left"]
    assert [trouble.is_new(text) for text in texts] == [True, False, True, True]
    trouble.over()
    assert trouble.is_new("5 MiB left")
