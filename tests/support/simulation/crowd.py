"""A crowd of nodes: how long a master takes until a failure is decided and everybody is told."""

from __future__ import annotations

import gc
import time

from holdfast_wire.messages import JobPhase
from simulation.job import Job
from simulation.scenario import Scenario


def told_seconds(nodes: int) -> float:
    """Return the CPU time from the death of a worker to the last agent with its assignment, s.

    Master and agents together: on the simulated network all of them are this process.
    """
    job = Job(
        Scenario(seed=1, replicas=nodes, minimum=nodes, maximum=nodes, heartbeat=5.0, raises=0.0)
    )
    job.add_agents(nodes)
    job.time.run(20.0, lambda: job.phase is JobPhase.TRAINING)
    assert job.phase is JobPhase.TRAINING
    number = job.master.core._desk.state.round
    job.time.run(job.time.now + 1.0)
    gc.collect()
    gc.freeze()  # a pass over the simulation's own millions of objects is no cost of a master
    begin = time.process_time()
    job.agents[nodes // 2].workers.exit(0, -9)
    told = job.time.run(job.time.now + 1.0, lambda: job.checks.starts.get(number + 1, 0) == nodes)
    spent = time.process_time() - begin
    gc.unfreeze()
    assert told, f"{job.checks.starts.get(number + 1, 0)} agents of {nodes} were told"
    return spent
