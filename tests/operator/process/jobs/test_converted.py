"""Jobs of other operators, converted by the command, in a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.control_plane import ControlPlane
from cluster.jobs import Make
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from house import forks
from jobs.foreign_jobs import SAMPLES

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
_SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
for _ in range(20):
    dist.all_reduce(total)
    total /= dist.get_world_size()
print("rank", dist.get_rank(), "of", dist.get_world_size(), "says", total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
_ENV = '[{name: HOLDFAST_PRELOAD, value: "-torch"}]'
_PYTORCHJOB = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: lines}}
spec:
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - {{name: pytorch, image: i, command: [python3, FOLDER/train.py], env: {_ENV}}}
    Worker: *role
"""
_TRAINJOB = f"""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: lines}}
spec:
  runtimeRef: {{name: torch-distributed}}
  trainer:
    numNodes: 2
    numProcPerNode: 1
    command: [torchrun, --rdzv-backend=c10d, FOLDER/train.py]
    env: {_ENV}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {{name: torch-distributed}}
spec:
  mlPolicy: {{numNodes: 1, torch: {{}}}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}}
          spec: {{template: {{spec: {{containers: [{{name: node, image: i}}]}}}}}}
"""
_DLROVER = f"""
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {{name: lines}}
spec:
  distributionStrategy: AllreduceStrategy
  replicaSpecs:
    worker:
      replicas: 2
      template:
        spec:
          restartPolicy: Always
          containers:
          - name: main
            image: i
            env: {_ENV}
            command:
            - /bin/bash
            - -c
            - "cd FOLDER && dlrover-run --nnodes=1:$NODE_NUM --nproc_per_node=1 \\
              --max_restarts=3 train.py"
"""


def _converted(*files: Path) -> list[dict[str, Any]]:
    words = ["-m", "holdfast_cli.main", "convert", *map(str, files)]
    done = forks.run(words, env=os.environ, timeout=60, imports=forks.Imports.SERVICES)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda file: file.stem)
def test_the_api_server_takes_what_the_command_has_written(
    plane: ControlPlane, kubectl: Kubectl, sample: Path
) -> None:
    """Job, autoscaler and a pod of its template pass the server's schema, rules and defaults."""
    if not plane.api.get(f"/api/v1/namespaces/{kubectl.namespace}/serviceaccounts/training").ok:
        kubectl.run("create", "serviceaccount", "training")
    job, *others = _converted(sample)
    for body in (job, *others):
        said = kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=body)
        assert f"{body['metadata']['name']} created (server dry run)" in said
    template = job["spec"]["worker"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template.get("metadata", {}), "name": "tried"},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }
    assert "pod/tried" in kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=pod)


@needs_pods
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_PYTORCHJOB, id="PyTorchJob"),
        pytest.param(_TRAINJOB, id="TrainJob"),
        pytest.param(_DLROVER, id="DLRover"),
    ],
)
def test_a_converted_job_trains_to_its_end(
    make_job: Make, kubectl: Kubectl, tmp_path: Path, text: str
) -> None:
    """Two workers that know nothing of Holdfast form a world on gloo, and the job is Complete."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    file = tmp_path / "foreign.yaml"
    file.write_text(text.replace("FOLDER", str(tmp_path)))
    (body,) = _converted(file)
    body["spec"]["cleanup"] = {"pods": "None"}
    job = make_job("lines")
    job.create(body)
    assert job.ended()[0] == "Complete", job.seen()
    said = kubectl.run("logs", "lines-worker-0-0") + kubectl.run("logs", "lines-worker-1-0")
    assert {f"rank {rank} of 2 says 1.0" for rank in (0, 1)} <= set(said.splitlines())
