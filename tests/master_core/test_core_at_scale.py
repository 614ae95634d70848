"""Ten thousand agents are no reason for ten thousand times the work.

Time is the process's own CPU time, with wide margins: a scan of all nodes at each message would be
a hundred times over them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import pytest

from holdfast_master.core import Core
from holdfast_master.inputs import (
    Connected,
    Input,
    Moment,
    OperatorConnected,
    PodSeen,
    Received,
    SpecArrived,
)
from holdfast_master.instructions import Instruction, Send
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire.messages import (
    Fence,
    Heartbeat,
    Hello,
    JobPhase,
    PodObservation,
    PodPhase,
    PrepareStore,
    RankProgress,
    RankSection,
    RoundStarted,
    StorePrepared,
    Warmed,
    WorkerExited,
    WorldAssignment,
)
from simulated_job import job_spec

NODES = 10_000
pytestmark = pytest.mark.no_cover  # its time is what is tested
NOW = Moment(100.0, 1_700_000_000.0)


class Crowd:
    """A core with many agents that answer at once."""

    def __init__(self) -> None:
        identity = CoreIdentity(
            job_name="j", job_uid="u", epoch=1, incarnation="m", version="0.1.0"
        )
        self.core = Core(identity, CoreSettings())
        self.core.open(NOW)
        self.take(OperatorConnected())
        self.take(
            SpecArrived(job_spec(replicas=NODES, min_replicas=NODES // 2, max_replicas=NODES))
        )
        for rank in range(NODES):
            hello = Hello(
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
            if isinstance(item, Send) and isinstance(item.response.message, PrepareStore):
                store = item.response.message.store_id
                batch = batch + self.say(
                    item.session - 1, StorePrepared(store_id=store, host="h", port=5)
                )
        return batch

    def say(self, rank: int, message: object, number: int = 0) -> list[Instruction]:
        """A message of one agent."""
        fence = Fence(epoch=1, incarnation="m", round=number)
        return self.take(Received(rank + 1, fence, message))  # type: ignore[arg-type]

    def start(self, number: int) -> None:
        """Everybody starts and steps."""
        for rank in range(NODES):
            self.say(rank, RoundStarted(first_step=True, step=1), number)

    def is_in(self, phase: JobPhase) -> bool:
        """Whether the job is in this phase."""
        return self.core.status(NOW).phase is phase


def cpu(what: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    begin = time.process_time()
    what()
    return time.process_time() - begin


@pytest.fixture(scope="module")
def grown() -> Callable[[], Crowd]:
    """Makes the crowd in the test that is first: coverage measures what fixtures do."""
    return functools.cache(_grow)


def _grow() -> Crowd:
    """Ten thousand warm agents in a world of eighty thousand ranks that trains."""
    made = Crowd()
    for rank in range(NODES):
        made.say(rank, Warmed())
    assert made.is_in(JobPhase.STARTING)
    made.start(1)
    assert made.is_in(JobPhase.TRAINING)
    return made


def test_a_heartbeat_costs_the_same_in_a_large_world(grown: Callable[[], Crowd]) -> None:
    """Thirty microseconds each, not a scan."""
    crowd = grown()
    ranks = tuple(
        RankProgress(
            local_rank=local,
            round=1,
            step=9,
            step_seconds=0.1,
            section=RankSection.TRAIN,
            has_sdk=True,
            first_step=1,
        )
        for local in range(8)
    )
    beat = Heartbeat(ranks=ranks)
    spent = cpu(lambda: [crowd.say(rank, beat, 1) for rank in range(NODES)])
    assert spent / NODES < 0.0005


def test_a_status_does_not_look_at_every_second(grown: Callable[[], Crowd]) -> None:
    """Shown twice a second."""
    crowd = grown()
    assert cpu(crowd.core.status(NOW).__repr__) < 0.5
    assert cpu(lambda: crowd.core.status(NOW)) < 0.25


def test_a_recovery_of_ten_thousand_nodes_is_decided_in_a_second(
    grown: Callable[[], Crowd],
) -> None:
    """A worker dies, its survivors all raise; then a node is lost."""
    crowd = grown()
    batches: list[list[Instruction]] = []
    died = WorkerExited(rank=40, exit_code=-9, step=9)
    spent = cpu(lambda: batches.append(crowd.say(5, died, 1)))
    told = [
        item
        for item in batches[0]
        if isinstance(item, Send) and isinstance(item.response.message, WorldAssignment)
    ]
    assert len(told) == NODES
    assert spent < 2.0
    echo = WorkerExited(exit_code=1, error_type="RuntimeError", step=9)
    assert cpu(lambda: [crowd.say(rank, echo, 1) for rank in range(NODES)]) / NODES < 0.0005
    crowd.start(2)
    assert crowd.is_in(JobPhase.TRAINING)
    gone = PodObservation(node_rank=7, pod_uid="p7", phase=PodPhase.FAILED, exit_code=137)
    assert cpu(lambda: crowd.take(PodSeen(gone))) < 3.0
    assert crowd.core.status(NOW).active_nodes == NODES - 1
    crowd.core.validate()
