"""The connection between agents and master breaks, and nothing happens to the training."""

from __future__ import annotations

import threading

import pytest

from local_job import RunningJob, StartJob
from proxy import Proxy

pytestmark = pytest.mark.train


def test_a_blip_of_0_2_s_changes_nothing(start_job: StartJob) -> None:
    """All agents' connections are reset and refused for 0.2 s: same round, same ranks."""
    jobs: list[RunningJob] = []
    with Proxy(lambda: _master(jobs[0])) as proxy:
        jobs.append(start_job(steps=5000, through=f"127.0.0.1:{proxy.port}"))
        job = jobs[0]
        before = job.wait_step(15)
        ranks = {job.rank_pid(0), job.rank_pid(1)}
        connections = proxy.accepted
        proxy.cut()
        threading.Event().wait(0.2)  # the length of the blip is what is tested
        proxy.mend()
        after = job.wait_step(before.step + 30)
        assert proxy.accepted >= connections + 2, "the agents did not connect anew"
        assert after.round == before.round
        assert {job.rank_pid(0), job.rank_pid(1)} == ranks
        assert all(event.reason != "NodeLost" for event in job.events())
        assert sum(budget.used for budget in after.budgets) == 0


def _master(job: RunningJob) -> tuple[str, int]:
    endpoint = job.home.endpoint()
    assert endpoint is not None
    return endpoint.host, endpoint.port
