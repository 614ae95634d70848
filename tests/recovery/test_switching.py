"""Local SGD whose replicas choose how they agree: people read of each choice and its reason."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jobs.local_job import StartJob
from local_sgd import switching_script

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(180)]


@pytest.mark.extended(
    "the agent is told of each switch in another test, and a job shows the choice",
    held_by=[
        "local_sgd/process/test_switching.py::test_the_agent_is_told_of_each_switch_by_one_rank",
        "recovery/test_switching.py::test_a_choice_of_replicas_outlives_a_lost_one",
    ],
)
def test_each_switch_is_an_event_with_what_was_measured(
    start_job: StartJob, tmp_path: Path
) -> None:
    """A slow link leads to local steps, a fast one back; the status has what runs."""
    fast = tmp_path / "fast"
    job = start_job(script=[switching_script.__file__, str(fast)])
    slow = job.wait_event("SyncSwitched")
    assert "steps from step" in slow.text
    assert "not in each step" in slow.text
    assert "agreement costs" in slow.text
    sync = job.status().sync
    assert sync is not None
    assert sync.made
    assert sync.interval > 1
    assert "steps, chosen at step" in job.cli("status", job.name).stdout
    fast.touch()
    back = job.wait_event("SyncSwitched", text="and would cost at most", after=slow.sequence)
    assert "agreement costs" in back.text
    assert job.finish() == 0, job.evidence()


def test_a_choice_of_replicas_outlives_a_lost_one(start_job: StartJob, tmp_path: Path) -> None:
    """Replica 1 tells the agent; it is killed, comes back, and the status has the choice still."""
    fast = tmp_path / "fast"
    job = start_job(
        script=[switching_script.__file__, str(fast), "elastic"],
        replicas=3,
        minReplicas=1,
        replicaPolicy={"nodesPerReplica": 1},
    )
    slow = job.wait_event("SyncSwitched")
    assert "not after each 2 steps: agreement costs" in slow.text
    (rank,) = job.nodes()[0].ranks
    epoch = job.status().outer_epoch
    os.kill(rank.pid, signal.SIGKILL)
    job.wait_for(
        "the replica that comes back",
        lambda: job.status().outer_epoch > epoch + 1 and len(job.status().outer_replicas) == 3,
    )
    sync = job.status().sync
    assert sync is not None
    assert sync.interval >= 4
    fast.touch()
    assert job.finish() == 0, job.evidence()
