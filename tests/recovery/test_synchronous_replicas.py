"""Synchronous replicas on real processes: a loss restarts one, and the others finish its step."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from holdfast.data.counting import count
from holdfast.data.record import files_of, lines_of
from holdfast.data.samples_report import is_once
from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(240)]


def pids_of(job: RunningJob) -> dict[int, list[int]]:
    """Return the pids of each node's ranks, once all nodes are there."""

    def there() -> dict[int, list[int]]:
        found = {rank: [one.pid for one in node.ranks] for rank, node in job.nodes().items()}
        return found if len(found) == 3 and all(found.values()) else {}

    return job.wait_for("ranks on all nodes", there)


def until_all_are_in(job: RunningJob, epoch: int) -> int:
    """Wait for a roster of three that is newer than an epoch; return its epoch."""

    def there() -> int:
        status = job.status()
        is_there = status.outer_epoch > epoch and len(status.outer_replicas) == 3
        return status.outer_epoch if is_there else 0

    return job.wait_for(f"a roster of 3 after epoch {epoch}", there)


def test_a_rank_an_agent_and_the_master_are_killed_and_the_others_miss_no_step(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Each at a drawn instant; the first replica keeps its process, and makes each step once.

    What a lost replica had not delivered is computed by those that are left, and each sample of a
    step is in it once. The job is stopped when all was seen, however long that takes.
    """
    luck = random.Random(seed := random.randrange(10_000))
    print(f"seed {seed}")
    script = ["examples/with_replicas/train.py", "--steps=5000", "--pause=0.04"]
    script += ["--micro-batches=6", f"--checkpoint-dir={tmp_path / 'checkpoints'}"]
    script.append(f"--record={tmp_path / 'samples'}")
    job = start_job(
        script=script,
        replicas=3,
        minReplicas=1,
        maxReplicas=4,
        replicaPolicy={"nodesPerReplica": 1},
    )
    epoch = until_all_are_in(job, 0)
    job.wait_step(10)
    before = pids_of(job)
    for kill in ("rank", "agent"):
        time.sleep(luck.uniform(0, 0.5))
        node = 1 if kill == "rank" else 2
        pid = pids_of(job)[node][0] if kill == "rank" else job.agent_pid(node)
        os.kill(pid, signal.SIGKILL)
        epoch = until_all_are_in(job, epoch)
        job.wait_step(job.status().step + 5)
    endpoint = job.home.endpoint()
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    job.wait_for("the master of the next epoch", lambda: job.status().epoch > 1)
    assert pids_of(job)[0] == before[0], job.evidence()
    job.wait_step(60)
    assert job.cli("stop", job.name).returncode == 0
    job.finish()
    check_logs(job)
    check_samples(tmp_path / "samples")


def check_logs(job: RunningJob) -> None:
    """The first replica made each step once, no script failed, and some computed for others."""
    logs = sorted(job.home.logs.glob(f"{job.name}-worker-*.log"))
    said = [log.read_text() for log in logs]
    steps = [int(one) for one in re.findall(r"replica 1  step (\d+)", said[0])]
    assert steps == list(range(20, 20 * len(steps) + 1, 20)), said[0]
    assert not any("Traceback" in text for text in said), job.evidence()
    assert sum(int(one) for one in re.findall(r"for others (\d+)", " ".join(said))) > 0


def check_samples(folder: Path) -> None:
    """Each sample of a step was in it once, by the ranks' own records."""
    counted = count(map(lines_of, files_of(folder)))
    assert is_once(counted), counted
    assert counted.steps >= 60
    assert sum(one.used for one in counted.epochs) == counted.steps * 6 * 4
