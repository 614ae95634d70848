"""The sample job for a cluster, applied as README says, through the loss of a pod."""

from __future__ import annotations

import pytest

from cluster.jobs import Make
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from house.repository import ROOT

pytestmark = [pytest.mark.kube, pytest.mark.timeout(420), needs_pods]


@pytest.mark.extended(
    "its script, its recovery and a job's life in a cluster have tests of their own",
    held_by=[
        "operator/process/jobs/test_first_job.py::test_a_job_trains_to_its_end",
        "operator/process/jobs/test_life.py::test_pods_that_are_taken_away_come_back_as_they_were",
        "recovery/test_sample_jobs.py::test_a_sample_job_ends_as_it_says",
    ],
)
def test_the_sample_for_a_cluster_runs_as_it_stands(kubectl: Kubectl, make_job: Make) -> None:
    """It trains, goes on without a deleted pod from memory, and succeeds."""
    job = make_job("cluster")
    kubectl.run("apply", "-f", str(ROOT / "examples" / "11-cluster.yaml"))
    job.until_training(2)
    job.until_steps()
    worker = "holdfast.dev/job=cluster,holdfast.dev/role=worker,holdfast.dev/index=1"
    kubectl.run("delete", "pod", "-l", worker)
    with job.awaited("Complete", seconds=300):
        pass
    assert "CheckpointRestored" in job.events(), job.seen()
