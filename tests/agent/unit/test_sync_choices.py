"""What ranks append of how replicas agree, as the agent tells the master."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.local_sgd.triggers.by_cost import reporter
from holdfast_agent.policies.master_messages import REPEATED_LIMIT, Accepted, Statements
from holdfast_agent.workers.sync_choices import SyncChoices
from holdfast_wire import keys
from holdfast_wire.messages import ReplicaReady, SyncChosen

FIRST = SyncChosen(step=24, interval=4, interval_before=1, made=True, reason="it costs 40 %")
NEXT = SyncChosen(step=90, interval=1, interval_before=4, made=True, reason="it costs 2 %")


class Node:
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
    node = Node(tmp_path)
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
    assert [(said.round, said.step, number) for said, number in node.said] == [
        (7, 24, 7),
        (7, 90, 7),
    ]
    assert node.said[0][0].reason == FIRST.reason


async def test_a_new_round_has_a_file_of_its_own(tmp_path: Path) -> None:
    """What ranks of the round before wrote is not told of the new one."""
    node = Node(tmp_path)
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
    node = Node(tmp_path)
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
    node = Node(tmp_path)
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
    told = [request.message for request in kept.again(Accepted(), now=0.0)]
    assert told == [ReplicaReady(replica=3), SyncChosen(step=2 * REPEATED_LIMIT - 1)]
