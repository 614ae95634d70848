"""A release whose operator is killed again and again under changing jobs, and what came of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from cluster.churn import Churn, Witness
from cluster.jobs import Job, Make, looping
from cluster.kubectl import Kubectl
from cluster.release import Release

_TESTBED: Final = Path(__file__).resolve().parents[2]
_SUPPORT: Final = f"{_TESTBED}{os.pathsep}{_TESTBED.parent / 'support'}"
_PAUSE_SECONDS: Final = 0.5
"""Between two changes."""


class Killing:
    """One run; `faults` says what went wrong."""

    def __init__(
        self, make: Make, kubectl: Kubectl, release: Release, folder: Path, seed: int
    ) -> None:
        """Begin with a job that trains and some that change.

        Args:
            make: Names a job.
            kubectl: A person's, in the jobs' namespace.
            release: Whose operator is killed.
            folder: For the training script.
            seed: Of the kills and of the changes.
        """
        self._release, self._seed, self._kubectl = release, seed, kubectl
        self._witness = Witness(kubectl)
        self.faults: list[str] = []
        self.changes = 0
        self.kills: list[str] = []
        """What the killed operators said."""
        self._steady = make("steady")
        self._steady.create(looping(folder, "--steps=1000000", "--step-seconds=0.1"))
        self._steady.until_training(1)
        self._churn = Churn(make, kubectl, seed)

    @property
    def pods(self) -> int:
        """Return the number of pods that there were."""
        return len(self._witness.pods)

    def run(self, kills: int) -> None:
        """Kill so often, while jobs change; then look at what is left."""
        before = self._steady.status
        self._replace(f"{self._seed}:{kills}")
        while not self._are_over():
            self._churn.step()
            self.changes += 1
            time.sleep(_PAUSE_SECONDS)
        self._churn.resume()
        for job in self._churn.jobs:
            self._until_settled(job)
            self._look_for_leaks(job)
        self._look_at_training(before)
        for job in [*self._churn.jobs, self._steady]:
            job.delete()
        self.faults += self._witness.faults
        if not self._witness.pods:
            self.faults.append("the witness has not seen a single pod")

    def stop(self) -> None:
        """End the witness."""
        self._witness.stop()

    def _until_settled(self, job: Job) -> None:
        job.until(f"{job.name} to settle", lambda: self._churn.settled(job))

    def _replace(self, kills: str) -> None:
        """Have the Deployment run the operator that is killed."""
        (deploy,) = self._release.kubectl.json("get", "deploy")["items"]
        spec = deploy["spec"]["template"]["spec"]["containers"][0]
        environment = [{"name": "KILLS", "value": kills}]
        environment.append({"name": "PYTHONPATH", "value": str(_SUPPORT)})
        changes: list[dict[str, Any]] = [
            {
                "op": "replace",
                "path": "command",
                "value": ["python", "-m", __package__ + ".killed_operator"],
            },
            {"op": "replace", "path": "env", "value": [*spec["env"], *environment]},
            {"op": "remove", "path": "livenessProbe"},
            {"op": "remove", "path": "readinessProbe"},
        ]
        for one in changes:
            one["path"] = f"/spec/template/spec/containers/0/{one['path']}"
        name = deploy["metadata"]["name"]
        self._release.kubectl.run("patch", "deploy", name, "--type=json", "-p", json.dumps(changes))

    def _are_over(self) -> bool:
        said = self._release.kubectl.try_run("logs", "deploy/holdfast-operator").stdout
        self.kills = [line for line in said.splitlines() if line.startswith("killed ")]
        return "no more kills" in said

    def _look_for_leaks(self, job: Job) -> None:
        chosen = ("-l", f"holdfast.dev/job={job.name}", "-o", "name")
        found = sorted(self._kubectl.run("get", "services,secrets", *chosen).split())
        expected = [
            f"secret/{job.name}-master-tls",
            f"secret/{job.name}-user-tls",
            f"secret/{job.name}-worker-tls-0",
            f"service/{job.name}",
            f"service/{job.name}-master",
        ]
        if found != expected:
            self.faults.append(f"{job.name} has {found}")
        revisions = self._kubectl.run("get", "controllerrevisions", *chosen).split()
        if len(revisions) != 1:
            self.faults.append(f"{job.name} has {revisions}")

    def _look_at_training(self, before: dict[str, Any]) -> None:
        """The job beside them has not noticed anything."""
        self._steady.until_steps()
        world, first = self._steady.world, before["world"]
        if world["round"] != first["round"] or world["epoch"] != first["epoch"]:
            self.faults.append(f"the training job went from {first} to {world}")
        if [pod["metadata"]["name"] for pod in self._steady.pods()] != ["steady-worker-0-0"]:
            self.faults.append("the training job's pod was made anew")
