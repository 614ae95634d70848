"""Ten thousand nodes: a world is decided and every agent told, on the simulated network."""

from __future__ import annotations

import gc
import time

import pytest

from holdfast_wire.messages import JobPhase
from simulation.job import Job
from simulation.scenario import Scenario

NODES = 10_000
BAR_SECONDS = 1.0
MARGIN = 2.0
"""The machine of a test run may be shared; the test prints the time itself."""


@pytest.mark.slow
def test_a_world_of_ten_thousand_is_decided_and_delivered() -> None:
    """From the death of a worker to the last agent that has its assignment, CPU time."""
    job = Job(
        Scenario(seed=1, replicas=NODES, minimum=NODES, maximum=NODES, heartbeat=5.0, raises=0.0)
    )
    job.add_agents(NODES)
    job.time.run(20.0, lambda: job.phase is JobPhase.TRAINING)
    assert job.phase is JobPhase.TRAINING
    number = job.master.core._desk.state.round
    job.time.run(job.time.now + 1.0)
    gc.collect()
    gc.freeze()  # a pass over the simulation's own millions of objects is no cost of a master
    begin = time.process_time()
    job.agents[NODES // 2].workers.exit(0, -9)
    told = job.time.run(
        job.time.now + 1.0,
        lambda: job.checks.starts.get(number + 1, 0) == NODES,
    )
    spent = time.process_time() - begin
    gc.unfreeze()
    print(f"{NODES} agents told after {spent:.2f} s of CPU time")
    assert told, f"{job.checks.starts.get(number + 1, 0)} agents of {NODES} were told"
    assert spent < BAR_SECONDS * MARGIN
