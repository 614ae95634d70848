"""Rosters of replicas and choices of syncs: written for ranks, read from them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.local_sgd.members.members import roster_file
from holdfast.local_sgd.triggers.by_cost import reporter
from holdfast_agent.policies.master_messages import REPEATED_LIMIT, Statements
from holdfast_agent.workers.replica_files import RosterFile, SyncChoices
from holdfast_wire import keys
from holdfast_wire.messages import (
    AssignmentMode,
    Fence,
    OuterRoster,
    ReplicaReady,
    RosterFailed,
    SyncChosen,
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
    assert variables == {"HOLDFAST_OUTER_ROSTER": str(node.rosters.path), "HOLDFAST_REPLICA": "7"}
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


FIRST = SyncChosen(step=24, interval=4, interval_before=1, made=True, reason="it costs 40 %")
NEXT = SyncChosen(step=90, interval=1, interval_before=4, made=True, reason="it costs 2 %")


class ChoosingNode:
    """The choices of a node's ranks, and what its agent says to the master."""

    def __init__(self, folder: Path) -> None:
        self.said: list[tuple[Any, int]] = []
        self.choices = SyncChoices(lambda: folder, lambda *said: self.said.append(said))


def append(named: dict[str, str], text: str) -> None:
    """Have a rank write more."""
    with Path(named[keys.ENV_SYNC_CHOICES]).open("a", encoding="utf-8") as file:
        file.write(text)


def cut_off(named: dict[str, str], count: int) -> str:
    """Take the last characters of the file, as if they were not written yet."""
    path = Path(named[keys.ENV_SYNC_CHOICES])
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[:-count], encoding="utf-8")
    return whole[-count:]


async def test_each_choice_is_told_once_and_with_its_round(tmp_path: Path) -> None:
    """A look that finds nothing new says nothing, and a line that is being written waits."""
    node = ChoosingNode(tmp_path)
    named = node.choices.begin(7)
    await node.choices.look()
    tell = reporter(named)
    tell(FIRST)
    await node.choices.look()
    await node.choices.look()
    tell(NEXT)
    cut = cut_off(named, 3)
    await node.choices.look()
    assert [said.step for said, _ in node.said] == [24]
    append(named, cut)
    await node.choices.look()
    told = [(said.round, said.step, number) for said, number in node.said]
    assert told == [(7, 24, 7), (7, 90, 7)]
    assert node.said[0][0].reason == FIRST.reason


async def test_a_new_round_has_a_file_of_its_own(tmp_path: Path) -> None:
    """What ranks of the round before wrote is not told of the new one."""
    node = ChoosingNode(tmp_path)
    reporter(node.choices.begin(1))(FIRST)
    named = node.choices.begin(2)
    await node.choices.look()
    assert node.said == []
    reporter(named)(NEXT)
    await node.choices.look()
    assert [(said.step, number) for said, number in node.said] == [(90, 2)]


async def test_a_line_that_is_no_choice_is_dropped_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the line, and the choices around it are told."""
    node = ChoosingNode(tmp_path)
    named = node.choices.begin(1)
    reporter(named)(FIRST)
    append(named, '{"stp": 1}\n')
    reporter(named)(NEXT)
    with caplog.at_level(logging.WARNING):
        await node.choices.look()
    assert [said.step for said, _ in node.said] == [24, 90]
    assert '{"stp": 1}' in caplog.text


def test_without_an_agent_or_a_disk_nobody_is_told_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that cannot be written is a line in the log."""
    reporter({})(FIRST)
    reporter({keys.ENV_SYNC_CHOICES: str(tmp_path / "gone" / "file")})(FIRST)
    assert "no report of a choice to the agent" in caplog.text


async def test_a_file_that_cannot_be_read_ends_no_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training needs nobody to know of a choice."""
    node = ChoosingNode(tmp_path)
    os.mkdir(node.choices.begin(1)[keys.ENV_SYNC_CHOICES])  # noqa: PTH102 - as a rank would
    with caplog.at_level(logging.WARNING):
        await node.choices.look()
    assert node.said == []
    assert "choices of syncs cannot be read" in caplog.text


def test_many_choices_push_nothing_else_out_of_what_a_new_master_is_told() -> None:
    """Only the newest is repeated."""
    kept = Statements()
    kept.note(ReplicaReady(replica=3), 1, 0.0)
    for step in range(2 * REPEATED_LIMIT):
        kept.note(SyncChosen(step=step), 1, float(step))
    told = [request.message for request in kept.again(Fence(), now=0.0)]
    assert told == [ReplicaReady(replica=3), SyncChosen(step=2 * REPEATED_LIMIT - 1)]
