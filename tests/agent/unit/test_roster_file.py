"""The roster of replicas on a node: written whole for its ranks, and what they say of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.local_sgd.members.members import roster_file
from holdfast_agent.workers.roster_file import RosterFile
from holdfast_wire.messages import (
    AssignmentMode,
    OuterRoster,
    ReplicaReady,
    RosterFailed,
    WorldAssignment,
)

PLACE = WorldAssignment(replica=7, base_rank=2, local_world_size=2)


def told(epoch: int, *replicas: int, host: str = "10.0.0.1") -> WorldAssignment:
    """A roster for replica 7."""
    roster = OuterRoster(epoch=epoch, replicas=replicas, store_host=host, store_port=29500)
    return WorldAssignment(mode=AssignmentMode.RECONFIGURE, replica=7, roster=roster)


async def test_a_hello_names_the_newest_roster_of_the_round_that_it_shows(tmp_path: Path) -> None:
    """A master without a journal finds by it who synchronises; another round has no roster yet."""
    rosters = RosterFile(lambda: tmp_path, lambda *_: None)
    assert rosters.newest(0) is None
    rosters.begin(3, PLACE)
    assert rosters.newest(3) is None
    rosters.take(told(4, 6, 7), 3)
    assert rosters.newest(3) == told(4, 6, 7).roster
    assert rosters.newest(2) is None


class Node:
    """The rosters of a node, and what its agent says to the master."""

    def __init__(self, folder: Path) -> None:
        self.said: list[tuple[Any, int]] = []
        self.rosters = RosterFile(lambda: folder, lambda *said: self.said.append(said))

    async def until_said(self, count: int) -> None:
        """Wait until so much was said."""
        await asyncio.to_thread(_wait, lambda: len(self.said) >= count)

    async def until_written(self, epoch: int) -> None:
        """Wait until ranks read this epoch."""
        read = roster_file(self.rosters.path)
        await asyncio.to_thread(_wait, lambda: (found := read()) and found.epoch >= epoch)

    def ready(self, rank: int) -> None:
        """Have a rank say that it is ready."""
        Path(f"{self.rosters.path}.ready-7-{rank}").touch()

    def unmet(self, epoch: int) -> None:
        """Have a rank say that it could not meet the others of an epoch."""
        Path(f"{self.rosters.path}.unmet-7-2").write_text(str(epoch))


def _wait(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose rosters are looked after."""
    made = Node(tmp_path)
    task = asyncio.create_task(made.rosters.run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_ranks_read_the_newest_roster_and_no_older_one(node: Node) -> None:
    """Their variables name the file; an order that came late changes nothing."""
    variables = node.rosters.begin(3, PLACE)
    assert variables == {
        "HOLDFAST_OUTER_ROSTER": str(node.rosters.path),
        "HOLDFAST_REPLICA": "7",
    }
    assert node.rosters.take(told(2, 5, 7), 3) == ""
    await node.until_written(2)
    assert node.rosters.take(told(1, 5), 3) == "epoch 1 is not newer than 2"
    assert node.rosters.take(told(3, 5), 2) == "round 2 does not run here"
    other = WorldAssignment(replica=6, roster=told(3, 6).roster)
    assert node.rosters.take(other, 3) == "replica 6 does not run here"
    found = roster_file(node.rosters.path)()
    assert found is not None
    assert (found.epoch, found.replicas, found.address) == (2, (5, 7), ("10.0.0.1", 29500))


async def test_an_address_of_ipv6_is_read_as_it_was_told(node: Node) -> None:
    """Its host has colons of its own."""
    node.rosters.begin(3, PLACE)
    node.rosters.take(told(1, 7, host="fd00::7"), 3)
    await node.until_written(1)
    found = roster_file(node.rosters.path)()
    assert found is not None
    assert found.address == ("fd00::7", 29500)


async def test_readiness_is_told_once_all_ranks_are_ready(node: Node) -> None:
    """One rank of two is not enough; the message is about the round of the processes."""
    node.rosters.begin(3, PLACE)
    node.ready(2)
    await asyncio.sleep(0.1)
    assert node.said == []
    node.ready(3)
    await node.until_said(1)
    assert node.said == [(ReplicaReady(replica=7), 3)]


async def test_members_that_could_not_meet_are_told_for_the_newest_epoch_only(node: Node) -> None:
    """An older epoch is over whatever became of it."""
    node.rosters.begin(3, PLACE)
    node.ready(2)
    node.ready(3)
    node.rosters.take(told(4, 5, 7), 3)
    node.unmet(3)
    await node.until_said(1)
    await node.until_written(4)
    node.unmet(4)
    await node.until_said(2)
    assert node.said[1] == (RosterFailed(epoch=4), 3)


async def test_a_job_without_replicas_has_no_roster(node: Node) -> None:
    """Its ranks get no variables, and no file is looked for."""
    assert node.rosters.begin(3, WorldAssignment(local_world_size=2)) == {}
    assert node.rosters.take(told(1, 7), 3) == "replica 7 does not run here"
