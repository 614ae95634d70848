"""The keeper behind its socket: who is answered when, and what is refused."""

from __future__ import annotations

import os
import random
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from checkpoints.led_nodes import WAIT_SECONDS, LoneServer, Rank, alone, connected, received
from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.memory_budget import Room
from holdfast.flash.memory.shard_table import encode
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.protocol import (
    Durable,
    Failed,
    Granted,
    Layout,
    LinkError,
    RequestRefused,
    Restore,
    RestoreStart,
)
from holdfast.flash.trainer.client import Client
from holdfast.flash.trainer.planner import RankPosition
from holdfast_wire.messages.spec import CheckpointPolicy


def _rank(
    server: LoneServer, root: Path | str, rank: int = 0, world: int = 1, lineage: int = 1
) -> AbstractContextManager[Rank]:
    return connected(server, root, rank, world, lineage, kept=world)


def _layout() -> Layout:
    table = sample_shard(0, 1, random.Random(0))[0].table
    return Layout(table=encode(table).decode(), bytes_room=4096, slots=3)


def test_what_is_said_behind_a_question_is_answered_too(tmp_path: Path) -> None:
    """It is taken in while the question is answered, and no further message comes."""
    behind = threading.Event()

    def wait() -> None:
        behind.wait(WAIT_SECONDS)

    with alone(tmp_path / "socket") as server:
        with _rank(server, tmp_path / "root") as rank:
            rank.link.send(Restore())
            received(rank.link, RestoreStart)
        with _rank(server, tmp_path / "root", lineage=2) as rank:
            server.service.post(wait)
            rank.link.send(Restore())
            rank.link.send(_layout())
            behind.set()
            received(rank.link, RestoreStart)
            received(rank.link, Granted)


def test_a_step_is_announced_once_all_ranks_are_on_storage(tmp_path: Path) -> None:
    """One rank's part alone is none; with the other's it is durable, and both hear so."""
    with (
        alone(tmp_path / "socket") as server,
        _rank(server, tmp_path, 0, 2) as first,
        _rank(server, tmp_path, 1, 2) as second,
    ):
        first.save(Version(1, 7), durable=True)
        assert first.link.receive(0.2) is None
        assert not (tmp_path / "step_7").exists()
        second.save(Version(1, 7), durable=True)
        for rank in (first, second):
            assert received(rank.link, Durable) == Durable(step=7)
        assert (tmp_path / "step_7" / "holdfast.json").exists()


def test_nobody_is_told_what_to_start_from_while_an_older_world_lives(tmp_path: Path) -> None:
    """Its ranks may still save: the answer comes when the last of them is gone."""
    with alone(tmp_path / "socket") as server, _rank(server, "", lineage=2) as new:
        with _rank(server, "", lineage=1) as old:
            assert old.arena.slots
            new.link.send(Restore())
            assert new.link.receive(0.2) is None
            old.save(Version(1, 3))
        origin = received(new.link, RestoreStart)
        assert (origin.lineage, origin.step, origin.ranks) == (1, 3, (0,))


def test_an_arena_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """The trainer is told before anything is allocated, and may go on without."""
    keeper = ArenaStore(room=lambda: Room(available=2**20, source="a test"))
    with alone(tmp_path / "socket", keeper) as server, _rank(server, tmp_path) as rank:
        rank.link.send(_layout())
        refused = received(rank.link, RequestRefused)
        assert "1 MiB are left by a test" in refused.error


def test_a_directory_that_cannot_be_written_fails_that_step(tmp_path: Path) -> None:
    """The reason reaches the trainer, and the slot is given back for the next."""
    with alone(tmp_path / "socket") as server, _rank(server, tmp_path / "missing") as rank:
        rank.save(Version(1, 7), durable=True)
        failed = received(rank.link, Failed)
        assert (failed.step, "No such file" in failed.error) == (7, True)
        (tmp_path / "missing").mkdir()
        rank.save(Version(1, 8), durable=True)
        assert received(rank.link, Durable) == Durable(step=8)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"kind": "Nothing"}', b'{"kind": "Hello"}'])
def test_what_is_no_message_is_refused_and_nobody_else_notices(tmp_path: Path, body: bytes) -> None:
    """A foreign word costs its sender an answer; the keeper serves on."""
    with alone(tmp_path / "socket") as server, _rank(server, "") as good:
        with _rank(server, "") as bad:
            bad.link._socket.send(body)
            received(bad.link, RequestRefused)
        good.link.send(Restore())
        assert received(good.link, RestoreStart) == RestoreStart()


def test_a_keeper_that_is_gone_is_told(tmp_path: Path) -> None:
    """The trainer does not wait for its whole time-out."""
    with alone(tmp_path / "socket") as server:
        place = RankPosition(rank=0, world=1, local_rank=0, local_world=1)
        client = Client("", place, 1, CheckpointPolicy(keep_last=1), server.path)
    with pytest.raises(LinkError, match="closed the connection"):
        client.ask(Restore(), RestoreStart)
    client.close()


def test_a_second_checkpointer_of_a_rank_is_refused_until_the_first_is_closed(
    tmp_path: Path,
) -> None:
    """Their versions would be mixed; a fork that holds the first is no obstacle."""
    with alone(tmp_path / "socket") as server:
        with _rank(server, "") as first, _rank(server, "") as second:
            refused = received(second.link, RequestRefused)
            assert "close that one first" in refused.error
            inherited = os.dup(first.link.fileno())
        with _rank(server, "") as third:
            third.link.send(Restore())
            assert received(third.link, RestoreStart) == RestoreStart()
        os.close(inherited)


def test_a_directory_that_cannot_be_read_is_an_error_for_who_asks(tmp_path: Path) -> None:
    """Not for the keeper, which serves on."""
    (tmp_path / "file").write_text("no directory")
    with alone(tmp_path / "socket") as server:
        with _rank(server, tmp_path / "file") as rank:
            rank.link.send(Restore())
            refused = received(rank.link, RequestRefused)
            assert "Not a directory" in refused.error
        with _rank(server, "") as rank:
            rank.link.send(Restore())
            assert received(rank.link, RestoreStart) == RestoreStart()


def test_a_socket_may_lie_deeper_than_the_kernel_takes_paths(tmp_path: Path) -> None:
    """107 bytes are the kernel's limit; temporary directories know nothing of it."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with alone(deep / "socket") as server, _rank(server, "") as rank:
        rank.link.send(Restore())
        assert received(rank.link, RestoreStart) == RestoreStart()
