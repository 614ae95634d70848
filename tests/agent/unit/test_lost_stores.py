"""A round whose store has ended does not start: its ranks would try to connect for minutes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast_agent.workers.rounds import Round
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.store_processes import NodeStores
from holdfast_agent.zygote.protocol import StoreExited, StoreReady
from holdfast_wire.messages import StorePrepared, WorkerExited, WorldAssignment


class Node:
    """The runner and the stores of a node, wired as the agent does."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, int]] = []
        self.runner = RoundRunner(
            cast("Any", None), lambda *said: self.told.append(said), lambda: None
        )
        self.stores = NodeStores(
            cast("Any", SimpleNamespace(send=lambda _: None)),
            "10.0.0.1",
            lambda message: self.told.append((message, 0)),
            self.runner.on_store_lost,
        )

    def prepare(self, store_id: str) -> None:
        """Have a store that waits."""
        self.stores.prepare(store_id)
        self.stores.on_ready(StoreReady(store_id, 5000))

    def assign(self, number: int, store_id: str) -> bool:
        """Take a round that waits for a zygote; return whether its store lives."""
        world = WorldAssignment(store_id=store_id, base_rank=4)
        self.runner.pending = Round(number=number, assignment=world)
        return self.stores.use(store_id, 0.0)

    @property
    def unstartable(self) -> list[tuple[str, int, int]]:
        """(error type, rank, round) of the reports about rounds that could not be started."""
        return [
            (message.error_type, message.rank, number)
            for message, number in self.told
            if isinstance(message, WorkerExited)
        ]


def _alone(stores: NodeStores) -> None:
    stores.on_exited(StoreExited("s7", "signal 9"))


def _with_its_zygote(stores: NodeStores) -> None:
    stores.on_zygote_lost("signal 9")


@pytest.mark.parametrize("end", [_alone, _with_its_zygote])
async def test_a_round_that_waits_is_given_up_when_its_store_ends(
    end: Callable[[NodeStores], None],
) -> None:
    """The master hears of the store and of the round, however the store ended."""
    node = Node()
    node.prepare("s7")
    assert node.assign(7, "s7")
    end(node.stores)
    assert node.runner.pending is None
    assert node.unstartable == [("StoreLost", 4, 7)]
    lost = [one for one, _ in node.told if isinstance(one, StorePrepared) and one.port == 0]
    assert [one.store_id for one in lost] == ["s7"]


async def test_a_round_on_another_nodes_store_waits_on() -> None:
    """The end of the store that waits for the round after it is no reason."""
    node = Node()
    node.prepare("s8")
    assert node.assign(7, "")
    node.stores.on_zygote_lost("signal 9")
    assert node.runner.pending is not None
    assert node.unstartable == []


async def test_a_store_that_ended_before_its_round_was_assigned_is_noticed() -> None:
    """The report of its end and the assignment cross."""
    node = Node()
    node.prepare("s7")
    node.stores.on_zygote_lost("signal 9")
    assert not node.assign(7, "s7")
