"""The core's work grows with the nodes and no faster, whatever happens to them.

An operator is connected, so that pods are looked at as well. Work is counted in calls at two sizes:
the same on every machine. Sorting is one call, so that N log N shows as N here, and a look at all
nodes at each message as N².
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from holdfast_master.settings import CoreSettings
from holdfast_wire.messages import DrainNodeRequest, JobPhase
from masters.work_meter import MeteredJob
from simulation.steered.job import job_spec

# Two large jobs, and nothing that smaller ones do not do.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]
SMALL, LARGE = 40, 160
MARGIN = 1.05
"""Nothing that is known grows faster than the nodes at all."""


def train(job: MeteredJob, members: int) -> None:
    """Until a world of this size trains and nothing is left to do."""
    job.time.run(
        job.time.now + 60.0, lambda: job.phase is JobPhase.TRAINING and len(job.members) == members
    )
    assert (job.phase, len(job.members)) == (JobPhase.TRAINING, members), job.tale()
    job.run(3.0)


def start(job: MeteredJob, nodes: int) -> None:
    """Every pod and agent comes for the first time."""
    job.add_agents(nodes)
    train(job, nodes)


def beat(job: MeteredJob, nodes: int) -> None:
    """Nothing happens for a while."""
    job.run(2.0)
    assert len(job.members) == nodes


def fail(job: MeteredJob, nodes: int) -> None:
    """A worker dies, and all others raise."""
    job.raises = 1.0
    job.agents[nodes // 2].crash_worker()
    train(job, nodes)
    job.raises = 0.0


def rejoin(job: MeteredJob, nodes: int) -> None:
    """A pod dies, the others go on without it, and its successor joins."""
    job.agents[nodes // 2].crash()
    train(job, nodes)


def lose_half(job: MeteredJob, nodes: int) -> None:
    """Half of the pods die at once, and come again."""
    for rank in range(nodes // 2):
        job.agents[rank].crash()
    train(job, nodes)


def shrink(job: MeteredJob, nodes: int) -> None:
    """Half of the nodes are not wanted any more."""
    job.operator.change(replicas=nodes // 2)
    train(job, nodes // 2)


def grow(job: MeteredJob, nodes: int) -> None:
    """They are wanted again."""
    job.operator.change(replicas=nodes)
    train(job, nodes)


def drain(job: MeteredJob, nodes: int) -> None:
    """A node is drained, and comes again."""
    job.ask(DrainNodeRequest(node_rank=nodes // 2))
    train(job, nodes - 1)
    job.add_agent(nodes // 2)
    train(job, nodes)


def evict(job: MeteredJob, nodes: int) -> None:
    """The cluster takes a quarter of the pods away, with notice."""
    for rank in range(0, nodes, 4):
        job.evict(rank)
    job.run(20.0)
    train(job, nodes)


def restart(job: MeteredJob, nodes: int) -> None:
    """The master dies; its successor has the journal."""
    job.restart_master(1.0)
    job.run(8.0)
    train(job, nodes)


def adopt(job: MeteredJob, nodes: int) -> None:
    """The master dies; its successor has nothing."""
    job.restart_master(1.0, journal=False)
    job.run(8.0)
    train(job, nodes)


STEPS: tuple[Callable[[MeteredJob, int], None], ...] = (
    start,
    beat,
    fail,
    rejoin,
    lose_half,
    shrink,
    grow,
    drain,
    evict,
    restart,
    adopt,
)


def works(nodes: int) -> Iterator[int]:
    """Go through all steps; the work of each."""
    spec = job_spec(replicas=nodes, min_replicas=nodes // 4, max_replicas=nodes)
    settings = CoreSettings(heartbeat_seconds=2.0)
    job = MeteredJob(spec, raises=0.0, settings=settings)
    for step in STEPS:
        before = job.work
        step(job, nodes)
        yield job.work - before


@functools.cache
def work() -> dict[str, tuple[int, int]]:
    """The work of each step in the small and in the large job."""
    names = [step.__name__ for step in STEPS]
    return dict(zip(names, zip(works(SMALL), works(LARGE), strict=True), strict=True))


@pytest.mark.parametrize("step", [step.__name__ for step in STEPS])
def test_four_times_the_nodes_are_four_times_the_work(step: str) -> None:
    """Not sixteen times: no message leads to a look at every node."""
    small, large = work()[step]
    assert small
    assert large / small <= MARGIN * LARGE / SMALL, (
        f"{step}: {small} calls at {SMALL} nodes, {large} at {LARGE}"
    )
