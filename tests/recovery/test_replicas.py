"""Local SGD on real processes: a replica that is killed is restarted alone, the others train on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from house.patience import patience
from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(240)]


def start(start_job: StartJob, tmp_path: Path, *flags: str, replicas: int = 3) -> RunningJob:
    """Start the example, a worker of two ranks for each replica, and wait until all train."""
    script = [
        "examples/with_local_sgd/train_elastic.py",
        f"--checkpoint-dir={tmp_path / 'checkpoints'}",
        "--pause=0.1",
        *flags,
    ]
    job = start_job(
        script=script,
        replicas=replicas,
        minReplicas=1,
        maxReplicas=6,
        replicaPolicy={"nodesPerReplica": 1},
    )
    job.wait_for("all replicas in a roster", lambda: len(job.status().outer_replicas) == replicas)
    job.wait_step(10)
    return job


def pids_of(job: RunningJob) -> dict[int, list[int]]:
    """Return the pids of each node's ranks, once all nodes are there."""

    def there() -> dict[int, list[int]]:
        found = {rank: [one.pid for one in node.ranks] for rank, node in job.nodes().items()}
        return found if all(found.values()) else {}

    return job.wait_for("ranks on all nodes", there)


def steps_of(job: RunningJob) -> dict[int, int]:
    """Return the newest step of each node's slowest rank."""
    return {
        rank: min([one.step for one in node.ranks], default=0) for rank, node in job.nodes().items()
    }


def until_roster(job: RunningJob, epoch: int, size: int) -> tuple[int, ...]:
    """Wait for a roster newer than an epoch, of so many replicas, and return their numbers."""

    def there() -> tuple[int, ...]:
        status = job.status()
        found = status.outer_epoch > epoch and len(status.outer_replicas) == size
        return status.outer_replicas if found else ()

    return job.wait_for(f"a roster of {size} after epoch {epoch}", there)


def test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step(
    start_job: StartJob, tmp_path: Path
) -> None:
    """A worker, then an agent, then the master at drawn instants: survivors keep pids and steps.

    Each lost replica comes back under a new number, with the others' step.
    """
    seed = random.randrange(10_000)
    luck = random.Random(seed)
    job = start(start_job, tmp_path, f"--steps={round(150 * patience())}")
    before, epoch = pids_of(job), job.status().outer_epoch
    time.sleep(luck.uniform(0, 0.5))
    os.kill(luck.choice(before[1]), signal.SIGKILL)
    assert len(until_roster(job, epoch, 3)) == 3
    job.wait_for("node 1 to step", lambda: steps_of(job)[1] > 10)
    epoch = job.status().outer_epoch
    time.sleep(luck.uniform(0, 0.5))
    os.kill(job.agent_pid(2), signal.SIGKILL)
    until_roster(job, epoch, 3)
    joined = steps_of(job)
    epoch = job.status().outer_epoch
    time.sleep(luck.uniform(0, 0.5))
    endpoint = job.home.endpoint()
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    job.wait_for("the master of the next epoch", lambda: job.status().epoch > 1)
    after = pids_of(job)
    assert after[0] == before[0], f"seed {seed}: {job.evidence()}"
    assert after[1] != before[1]
    assert joined[0] > 10
    assert job.status().outer_epoch == epoch, f"seed {seed}: {job.evidence()}"
    assert job.finish() == 0, f"seed {seed}: {job.evidence()}"
    survivor = (job.home.logs / f"{job.name}-worker-0-0.log").read_text()
    assert "validation loss" in survivor, f"seed {seed}: {job.evidence()}"
    assert "Traceback" not in survivor, f"seed {seed}: {survivor}"


@pytest.mark.extended(
    "seeds of the simulation have such rosters; survivors keep their processes in another test",
    held_by=[
        "recovery/test_replicas.py::test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step",
        "local_sgd/process/test_elastic_members.py::test_four_replicas_become_two_and_then_six",
        "simulation/test_seeds.py::test_a_job_of_replicas_survives_whatever_happens",
    ],
)
def test_replicas_follow_the_wanted_number_without_a_restart(
    start_job: StartJob, tmp_path: Path
) -> None:
    """3 to 2 to 4 by `holdfast scale`: who stays keeps its processes."""
    job = start(start_job, tmp_path, "--steps=220")
    before, epoch = pids_of(job), job.status().outer_epoch
    assert job.cli("scale", job.name, "2").returncode == 0
    until_roster(job, epoch, 2)
    epoch = job.status().outer_epoch
    assert job.cli("scale", job.name, "4").returncode == 0
    until_roster(job, epoch, 4)
    after = pids_of(job)
    assert [after[0], after[1]] == [before[0], before[1]], job.evidence()
    assert job.finish() == 0, job.evidence()


@pytest.mark.extended(
    "one real job: the ranks' part and the master's are tested by themselves",
    held_by=[
        "master/unit/job/test_frozen_replicas.py::test_a_replica_that_hangs_is_out_until_it_steps_again",
        "local_sgd/process/test_elastic_members.py::test_a_frozen_replica_holds_nobody_once_a_roster_leaves_it_out",
        "recovery/test_replicas.py::test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step",
    ],
)
def test_a_frozen_rank_is_put_out_and_taken_in_again(start_job: StartJob, tmp_path: Path) -> None:
    """SIGSTOP of one rank: the others wait in a sync until the master finds who keeps them.

    Once it goes on it is in the next roster, in the same process.
    """
    job = start(start_job, tmp_path, "--steps=160", "--interval=5", replicas=2)
    before, epoch = pids_of(job), job.status().outer_epoch
    os.kill(before[1][0], signal.SIGSTOP)
    try:
        until_roster(job, epoch, 1)
    finally:
        os.kill(before[1][0], signal.SIGCONT)
    until_roster(job, epoch + 1, 2)
    assert pids_of(job) == before, job.evidence()
    assert job.finish() == 0, job.evidence()
