"""Jobs that change all the time, drawn from a seed, and a witness of every pod that ever was.

The workers only sleep: what is looked at is what the operator makes of wishes and of pods that go.
"""

from __future__ import annotations

import collections
import random
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cluster.jobs import Job, container, manifest
from cluster.kubectl import Kubectl, watch_events

_OVER: Final = frozenset({"Succeeded", "Failed"})
_EPOCH: Final = "HOLDFAST_EPOCH"
Place = tuple[str, str, str]
"""Uid of the job, role, index."""


class Witness:
    """Follows all pods of a namespace, and remembers what must never be."""

    def __init__(self, kubectl: Kubectl) -> None:
        """Begin at once."""
        words = ("get", "pods", "--watch", "-o", "json", "--output-watch-events")
        self._process = kubectl.start(*words)
        self._living: dict[Place, set[str]] = collections.defaultdict(set)
        self._epochs: dict[tuple[str, str], str] = {}
        self.pods: set[str] = set()
        """Uids of all pods that were seen."""
        self.faults: list[str] = []
        self.times: dict[tuple[str, str], float] = {}
        """When the first event of a kind about a pod was seen (monotonic), by kind and name."""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See no more."""
        self._process.terminate()
        self._process.wait(10)
        self._thread.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for kind, pod in watch_events(self._process.stdout):
            self._see(kind, pod)

    def _see(self, kind: str, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        labels, uid = metadata.get("labels") or {}, metadata["uid"]
        if "holdfast.dev/role" not in labels:
            return
        self.pods.add(uid)
        self.times.setdefault((kind, metadata["name"]), time.monotonic())
        owner = metadata["ownerReferences"][0]["uid"]
        place = (owner, labels["holdfast.dev/role"], labels.get("holdfast.dev/index", ""))
        ended = pod.get("status", {}).get("phase") in _OVER
        if kind == "DELETED" or ended or "deletionTimestamp" in metadata:
            self._living[place].discard(uid)
            return
        self._living[place].add(uid)
        if len(self._living[place]) > 1:
            self.faults.append(f"{metadata['name']} is one of two that live at {place}")
        self._see_epoch(owner, pod)

    def _see_epoch(self, owner: str, pod: dict[str, Any]) -> None:
        for one in pod["spec"]["containers"][0].get("env") or ():
            if one["name"] == _EPOCH:
                first = self._epochs.setdefault((owner, one["value"]), pod["metadata"]["uid"])
                if first != pod["metadata"]["uid"]:
                    self.faults.append(f"{pod['metadata']['name']} has an epoch twice given")


class Churn:
    """A few jobs, and one change of one of them after another."""

    def __init__(self, make: Callable[[str], Job], kubectl: Kubectl, seed: int) -> None:
        self._kubectl = kubectl
        self._chance = random.Random(seed)
        self.jobs = [make(f"churn{number}") for number in range(3)]
        self._wanted: dict[str, dict[str, Any]] = {}
        for job in self.jobs:
            self._create(job)

    def step(self) -> str:
        """Change something; return what."""
        job = self._chance.choice(self.jobs)
        changes = (self._scale, self._scale, self._pause, self._take, self._take, self._renew)
        change = self._chance.choice(changes)
        change(job)
        return f"{change.__name__} {job.name}"

    def settled(self, job: Job) -> bool:
        """Return whether a job has exactly the pods that it should have and says so."""
        wanted = self._wanted[job.name]
        replicas = 0 if wanted["suspend"] else wanted["replicas"]
        status = job.status
        masters = [pod for pod in job.pods("master") if "deletionTimestamp" not in pod["metadata"]]
        return (
            len(job.live()) == len(job.pods()) == replicas == status.get("replicas")
            and len(masters) == (0 if wanted["suspend"] else 1)
            and status.get("observedGeneration") == job.body["metadata"]["generation"]
        )

    def resume(self) -> None:
        """Have every job run: what is settled then is the whole of it."""
        for job in self.jobs:
            self._wanted[job.name]["suspend"] = False
            job.patch(suspend=False)

    def _create(self, job: Job) -> None:
        body = manifest("sleep", "3600", replicas=2, maxReplicas=5, minReplicas=1)
        body["spec"]["elasticPolicy"] = {"scaleDownGraceSeconds": 0}
        body["spec"]["worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
        container(body)["env"] = [{"name": "DRAWN", "value": str(self._chance.random())}]
        self._wanted[job.name] = {"replicas": 2, "suspend": False}
        job.create(body)

    def _scale(self, job: Job) -> None:
        replicas = self._chance.randint(1, 5)
        self._wanted[job.name]["replicas"] = replicas
        job.patch(replicas=replicas)

    def _pause(self, job: Job) -> None:
        suspend = not self._wanted[job.name]["suspend"]
        self._wanted[job.name]["suspend"] = suspend
        job.patch(suspend=suspend)

    def _take(self, job: Job) -> None:
        names = job.live() + job.live("master")
        if names:
            flags = self._chance.choice((["--wait=false"], ["--force", "--grace-period=0"]))
            name = self._chance.choice(names)
            self._kubectl.try_run("delete", "pod", name, *flags)

    def _renew(self, job: Job) -> None:
        """Delete it, and make another one of the name."""
        try:
            self._kubectl.run("delete", "ej", job.name, "--timeout=50s")
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{job.name} does not go") from error
        self._create(job)
