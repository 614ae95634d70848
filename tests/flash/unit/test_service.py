"""The keeper behind its socket: who is answered when, and what is refused."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.led_nodes import WAIT_SECONDS, received, running
from checkpoints.sample_shards import sample_shard
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.memory_budget import Room
from holdfast.flash.memory.shard_table import encode
from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.local_commit import local_service
from holdfast.flash.server.protocol import (
    Durable,
    Failed,
    Granted,
    Layout,
    Link,
    LinkError,
    RequestRefused,
    Restore,
    RestoreStart,
    Saved,
    TrainerHello,
    connect,
    listen,
)
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy


@contextmanager
def _served(folder: Path, keeper: ArenaStore | None = None) -> Iterator[str]:
    path = str(folder / "socket")
    with running(local_service(keeper or ArenaStore(), listen(path))):
        yield path


@contextmanager
def _rank(
    path: str, root: Path | str, rank: int = 0, world: int = 1, lineage: int = 1
) -> Iterator[Link]:
    link = connect(path)
    link.send(
        TrainerHello(
            rank=rank, world=world, kept=world, lineage=lineage, root=str(root),
            policy=CheckpointPolicy(keep_last=3),
        )
    )  # fmt: skip
    try:
        yield link
    finally:
        link.close()


def _layout(rank: int = 0, world: int = 1) -> Layout:
    table = sample_shard(rank, world, random.Random(0))[0].table
    return Layout(table=encode(table).decode(), bytes_room=4096, slots=3)


def _save(link: Link, arena: Arena, version: Version, *, durable: bool) -> None:
    slot = next(slot for slot in arena.slots if slot.state == 0)
    slot.begin_write(version)
    slot.image[:] = bytes([version.step]) * len(slot.image)
    slot.commit([10])
    tier = Tier.STORAGE if durable else Tier.MEMORY
    link.send(Saved(lineage=version.lineage, step=version.step, tier=tier))


def _arena(link: Link, rank: int = 0, world: int = 1) -> Arena:
    link.send(_layout(rank, world))
    _, (fd,), _ = link.expect(Granted, timeout_s=WAIT_SECONDS)
    arena = Arena(fd)
    os.close(fd)
    return arena


def test_what_is_said_behind_a_question_is_answered_too(tmp_path: Path) -> None:
    """It is taken in while the question is answered, and no further message comes."""
    service = local_service(ArenaStore(), listen(str(tmp_path / "socket")))
    behind = threading.Event()

    def wait() -> None:
        behind.wait(WAIT_SECONDS)

    with running(service):
        with _rank(str(tmp_path / "socket"), tmp_path / "root") as link:
            link.send(Restore())
            received(link, RestoreStart)
        with _rank(str(tmp_path / "socket"), tmp_path / "root", lineage=2) as link:
            service.post(wait)
            link.send(Restore())
            link.send(_layout())
            behind.set()
            received(link, RestoreStart)
            received(link, Granted)


def test_a_step_is_announced_once_all_ranks_are_on_storage(tmp_path: Path) -> None:
    """One rank's part alone is none; with the other's it is durable, and both hear so."""
    with (
        _served(tmp_path) as path,
        _rank(path, tmp_path, 0, 2) as first,
        _rank(path, tmp_path, 1, 2) as second,
    ):
        arenas = _arena(first, 0, 2), _arena(second, 1, 2)
        _save(first, arenas[0], Version(1, 7), durable=True)
        assert first.receive(0.2) is None
        assert not (tmp_path / "step_7").exists()
        _save(second, arenas[1], Version(1, 7), durable=True)
        for link in (first, second):
            assert received(link, Durable) == Durable(step=7)
        assert (tmp_path / "step_7" / "holdfast.json").exists()


def test_nobody_is_told_what_to_start_from_while_an_older_world_lives(tmp_path: Path) -> None:
    """Its ranks may still save: the answer comes when the last of them is gone."""
    with _served(tmp_path) as path, _rank(path, "", lineage=2) as new:
        with _rank(path, "", lineage=1) as old:
            arena = _arena(old)
            new.send(Restore())
            assert new.receive(0.2) is None
            _save(old, arena, Version(1, 3), durable=False)
        origin = received(new, RestoreStart)
        assert (origin.lineage, origin.step, origin.ranks) == (1, 3, (0,))


def test_an_arena_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """The trainer is told before anything is allocated, and may go on without."""
    keeper = ArenaStore(room=lambda: Room(available=2**20, source="a test"))
    with _served(tmp_path, keeper) as path, _rank(path, tmp_path) as link:
        link.send(_layout())
        refused = received(link, RequestRefused)
        assert "1 MiB are left by a test" in refused.error


def test_a_directory_that_cannot_be_written_fails_that_step(tmp_path: Path) -> None:
    """The reason reaches the trainer, and the slot is given back for the next."""
    with _served(tmp_path) as path, _rank(path, tmp_path / "missing") as link:
        arena = _arena(link)
        _save(link, arena, Version(1, 7), durable=True)
        failed = received(link, Failed)
        assert (failed.step, "No such file" in failed.error) == (7, True)
        (tmp_path / "missing").mkdir()
        _save(link, arena, Version(1, 8), durable=True)
        assert received(link, Durable) == Durable(step=8)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"kind": "Nothing"}', b'{"kind": "Hello"}'])
def test_what_is_no_message_is_refused_and_nobody_else_notices(tmp_path: Path, body: bytes) -> None:
    """A foreign word costs its sender an answer; the keeper serves on."""
    with _served(tmp_path) as path, _rank(path, "") as good:
        with _rank(path, "") as bad:
            bad._socket.send(body)
            received(bad, RequestRefused)
        good.send(Restore())
        assert received(good, RestoreStart) == RestoreStart()


def test_a_keeper_that_is_gone_is_told(tmp_path: Path) -> None:
    """The trainer does not wait for its whole time-out."""
    with _served(tmp_path) as path:
        link = connect(path)
    with pytest.raises(LinkError, match="closed the connection"):
        received(link, RestoreStart)
    link.close()


def test_a_second_checkpointer_of_a_rank_is_refused_until_the_first_is_closed(
    tmp_path: Path,
) -> None:
    """Their versions would be mixed; a fork that holds the first is no obstacle."""
    with _served(tmp_path) as path:
        with _rank(path, "") as first, _rank(path, "") as second:
            refused = received(second, RequestRefused)
            assert "close that one first" in refused.error
            inherited = os.dup(first.fileno())
        with _rank(path, "") as third:
            third.send(Restore())
            assert received(third, RestoreStart) == RestoreStart()
        os.close(inherited)


def test_a_directory_that_cannot_be_read_is_an_error_for_who_asks(tmp_path: Path) -> None:
    """Not for the keeper, which serves on."""
    (tmp_path / "file").write_text("no directory")
    with _served(tmp_path) as path:
        with _rank(path, tmp_path / "file") as link:
            link.send(Restore())
            refused = received(link, RequestRefused)
            assert "Not a directory" in refused.error
        with _rank(path, "") as link:
            link.send(Restore())
            assert received(link, RestoreStart) == RestoreStart()


def test_a_socket_may_lie_deeper_than_the_kernel_takes_paths(tmp_path: Path) -> None:
    """107 bytes are the kernel's limit; temporary directories know nothing of it."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with _served(deep) as path, _rank(path, "") as link:
        link.send(Restore())
        assert received(link, RestoreStart) == RestoreStart()
