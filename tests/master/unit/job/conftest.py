"""Tests of the master's core: inputs in, instructions out, invariants after each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.steered.job import SteeredJob, job_spec


@pytest.fixture
def training() -> Callable[..., SteeredJob]:
    """Makes a job that trains, on nodes 0 to n - 1, with at least a few steps done."""

    def start(nodes: int = 4, **changes: object) -> SteeredJob:
        spec_changes = {"replicas": nodes, **changes}
        job = SteeredJob(job_spec(**spec_changes))
        job.add_agents(nodes)
        job.run_until("TRAINING")
        job.run(2.0)
        return job

    return start
