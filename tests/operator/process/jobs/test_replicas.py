"""Replicas of a job in a cluster (local SGD): one loses its pod, the other trains on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster.jobs import Make, container, pod_spec
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from house.repository import ROOT

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("witness"),
    needs_pods,
]


@pytest.mark.extended(
    "replicas on one machine, and the sample's way into a cluster, have tests of their own",
    held_by=[
        "recovery/test_replicas.py::test_kills_at_any_instant_restart_one_replica_and_cost_the_others_no_step",
        "local_sgd/process/test_elastic_members.py::test_four_replicas_become_two_and_then_six",
        "simulation/test_seeds.py::test_a_job_of_replicas_survives_whatever_happens",
        "operator/process/jobs/test_first_job.py::test_a_job_trains_to_its_end",
    ],
)
def test_the_example_of_replicas_outlives_the_loss_of_a_pod(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Its pods need a script and a volume, as the examples' page says; the other pod runs on."""
    file = ROOT / "examples" / "with_local_sgd" / "job-elastic.yaml"
    body = yaml.safe_load(file.read_text().replace("--steps=200", "--steps=600"))
    mounts = [{"name": "runs", "mountPath": str(ROOT / "runs")}]
    container(body).update(image="any", workingDir=str(ROOT), volumeMounts=mounts)
    pod_spec(body)["volumes"] = [{"name": "runs", "hostPath": {"path": str(tmp_path)}}]
    job = make_job(body["metadata"]["name"])
    job.create(body)
    job.until("a roster of both", lambda: "RosterChanged" in job.events())
    job.until_training(2)
    before, lost = job.uids(), job.live()[1]
    with job.awaited("Complete", seconds=200):
        kubectl.run("delete", "pod", lost, "--force", "--grace-period=0")
    assert len(job.uids() & before) == 1, job.seen()
    assert job.status["restarts"]["inPlace"] == 0
    assert "failures" not in job.used(), job.seen()
    assert list(tmp_path.glob("local-sgd-*/step_600/holdfast.json"))
