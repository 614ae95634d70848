"""Ten thousand agents are no reason for ten thousand times the work.

Counted are the lines that Python runs, a thousand nodes beside ten thousand: the same on every
machine, however busy. A scan of all nodes at each message would make it a hundred times as many
instead of ten. What it comes to in seconds is `bench/load`'s to say.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from holdfast_master.core import Core
from holdfast_master.inputs import (
    Connected,
    Input,
    Moment,
    OperatorConnected,
    OperatorMessage,
    Received,
)
from holdfast_master.instructions import Instruction, Send
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire import messages as wire
from simulation.oracle import core_state
from simulation.steered.job import job_spec

FEW, MANY = 1_000, 10_000
GROWTH = MANY * math.log(MANY) / (FEW * math.log(FEW))
"""N log N, from few to many: what is decided for all nodes at once may grow no faster."""
# Counting lines takes the place of measuring which were run.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]
NOW = Moment(100.0, 1_700_000_000.0)


class Crowd:
    """A core with many agents that answer at once."""

    def __init__(self, nodes: int, **spec: object) -> None:
        self.nodes = nodes
        identity = CoreIdentity(
            job_name="j", job_uid="u", epoch=1, incarnation="m", version="0.1.0"
        )
        self.core = Core(identity, CoreSettings())
        self.core.open(NOW)
        self.take(OperatorConnected())
        sizes = {"replicas": nodes, "min_replicas": nodes // 2, "max_replicas": nodes}
        self.take(OperatorMessage(job_spec(**sizes, **spec)))
        for rank in range(nodes):
            hello = wire.Hello(
                job_uid="u",
                node_rank=rank,
                pod_uid=f"p{rank}",
                agent_id=f"a{rank}",
                local_world_size=8,
                peer_address=f"h{rank}:1",
            )
            self.take(Connected(rank + 1, hello))

    def take(self, event: Input) -> list[Instruction]:
        """One input; stores are prepared at once."""
        batch = self.core.handle(event, NOW)
        for item in batch:
            if isinstance(item, Send) and isinstance(item.response.message, wire.PrepareStore):
                store = item.response.message.store_id
                batch = batch + self.say(
                    item.session - 1, wire.StorePrepared(store_id=store, host="h", port=5)
                )
        return batch

    def say(self, rank: int, message: object, number: int = 0) -> list[Instruction]:
        """A message of one agent."""
        fence = wire.Fence(epoch=1, incarnation="m", round=number)
        return self.take(Received(rank + 1, fence, message))  # type: ignore[arg-type]

    def start(self, number: int) -> None:
        """Everybody starts and steps."""
        for rank in range(self.nodes):
            self.say(rank, wire.RoundStarted(first_step=True, step=1), number)

    def is_in(self, phase: wire.JobPhase) -> bool:
        """Return whether the job is in this phase."""
        return self.core.status(NOW).phase is phase


def lines(what: Callable[[], object]) -> int:
    """Count the calls, lines and returns that Python runs in a call."""
    count = 0

    def trace(_frame: FrameType, _event: str, _value: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    finally:
        sys.settrace(before)
    return count


Grown = Callable[[int], Crowd]


@pytest.fixture
def grown() -> Grown:
    """Makes the crowds in the test: coverage measures what fixtures do."""
    return _grow


@functools.cache
def _grow(nodes: int) -> Crowd:
    """Warm agents in a world of eight ranks each that trains."""
    made = Crowd(nodes)
    for rank in range(nodes):
        made.say(rank, wire.Warmed())
    assert made.is_in(wire.JobPhase.STARTING)
    made.start(1)
    assert made.is_in(wire.JobPhase.TRAINING)
    return made


def test_a_heartbeat_costs_the_same_in_a_large_world(grown: Grown) -> None:
    """Some hundred lines each, not a scan."""
    ranks = tuple(
        wire.RankProgress(
            local_rank=local,
            round=1,
            step=9,
            step_seconds=0.1,
            section=wire.RankSection.TRAIN,
            has_sdk=True,
            first_step=1,
        )
        for local in range(8)
    )
    beat = wire.Heartbeat(ranks=ranks)

    def beats(crowd: Crowd) -> int:
        return lines(lambda: [crowd.say(rank, beat, 1) for rank in range(FEW)])

    few, many = beats(grown(FEW)), beats(grown(MANY))
    assert few > 100 * FEW  # it was counted
    assert many < 1.01 * few


def test_a_status_looks_once_at_every_node_and_not_at_every_second(grown: Grown) -> None:
    """Shown twice a second, also on the second day."""

    def status(nodes: int, when: Moment) -> int:
        core = grown(nodes).core
        return lines(lambda: core.status(when))

    few, many = status(FEW, NOW), status(MANY, NOW)
    assert few > FEW  # it was counted
    assert many < GROWTH * few
    later = Moment(NOW.mono + 86400.0, NOW.unix + 86400.0)
    assert status(FEW, later) < 1.01 * few


def test_a_recovery_of_all_nodes_is_decided_in_proportion_to_them(grown: Grown) -> None:
    """A worker dies, its survivors all raise; then a node is lost."""
    few, many = _recover(grown(FEW)), _recover(grown(MANY))
    assert all(cost > FEW for cost in few)  # it was counted
    assert all(cost < GROWTH * less for less, cost in zip(few, many, strict=True)), (few, many)


def _recover(crowd: Crowd) -> tuple[int, int, int]:
    """Lines of deciding after a death, of hearing all survivors, of deciding after a loss."""
    batches: list[list[Instruction]] = []
    died = wire.WorkerExited(rank=40, exit_code=-9, step=9)
    death = lines(lambda: batches.append(crowd.say(5, died, 1)))
    told = [
        item
        for item in batches[0]
        if isinstance(item, Send) and isinstance(item.response.message, wire.WorldAssignment)
    ]
    assert len(told) == crowd.nodes
    ack = wire.WorkerExited(exit_code=1, error_type="RuntimeError", step=9)
    acks = lines(lambda: [crowd.say(rank, ack, 1) for rank in range(crowd.nodes)])
    crowd.start(2)
    assert crowd.is_in(wire.JobPhase.TRAINING)
    gone = wire.PodObservation(node_rank=7, pod_uid="p7", phase=wire.PodPhase.FAILED, exit_code=137)
    loss = lines(lambda: crowd.take(OperatorMessage(gone)))
    assert crowd.core.status(NOW).active_nodes == crowd.nodes - 1
    core_state.check(crowd.core.job)
    return death, acks, loss


def test_replicas_that_begin_cost_in_proportion_to_them() -> None:
    """Each node's store and each one's word that it is ready: all are looked at for the last one.

    As each node is a replica of its own, each of them has a store, and waits for a roster.
    """
    few, many = _begin(FEW // 5), _begin(MANY // 5)
    assert all(cost > FEW for cost in few)  # it was counted
    most = 1.1 * GROWTH  # fewer nodes, so that N log N grows a little faster
    assert all(cost < most * less for less, cost in zip(few, many, strict=True)), (few, many)


def _begin(nodes: int) -> tuple[int, int]:
    """Lines until all replicas are assigned, and until all are in a roster."""
    crowd = Crowd(nodes, nodes_per_replica=1)
    warmed = lines(lambda: [crowd.say(rank, wire.Warmed()) for rank in range(nodes)])
    assert crowd.is_in(wire.JobPhase.STARTING)
    world = crowd.core.job.worlds.assigned
    assert world is not None
    numbers = {rank: place.replica.number for rank, place in world.places.items()}

    def ready(ranks: Iterable[int]) -> None:
        for rank in ranks:
            crowd.say(rank, wire.ReplicaReady(replica=numbers[rank]), 1)

    begun = lines(lambda: ready(range(nodes - 1)))
    assert _in_roster(crowd) == 0, "one is not ready, and may be in time"
    begun += lines(lambda: ready([nodes - 1]))
    assert _in_roster(crowd) == nodes
    return warmed, begun


def _in_roster(crowd: Crowd) -> int:
    """The number of replicas that synchronise."""
    roster = crowd.core.job.state.roster
    return len(roster.replicas) if roster is not None else 0
