"""Limits of host memory that were too small, as the operator hears of them."""

from __future__ import annotations

from holdfast_wire.messages import MemoryShortage, MemoryUse
from simulation.steered.job import training

GIB = 2**30


def test_the_operator_hears_of_the_limit_that_was_too_small() -> None:
    """Of each node the largest, also from the next master; a signal from elsewhere says nothing."""
    job = training(2)
    job.agents[0].crash_worker()
    for gib in (16, 20):
        job.agents[1].memory = MemoryUse(limit_bytes=gib * GIB, current_bytes=1, oom_kills=1)
        job.run(3.0)
        job.agents[1].crash_worker()
        job.run(12.0)
    told = (MemoryShortage(node_rank=1, limit_bytes=20 * GIB),)
    assert job.status.memory_shortages == told
    job.restart_master()
    assert job.status.memory_shortages == told
