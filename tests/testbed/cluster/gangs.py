"""Two jobs for which a cluster has room one at a time, and every moment of their workers.

Their pods are on paper: what is looked at is what the scheduler makes of groups. How large the jobs
are, in which order they come, and which worker is lost, is drawn from a seed.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cluster.jobs import Job, container, manifest, pod_spec
from cluster.kubectl import Kubectl, watch_events
from cluster.kubelet.paper import KEY

GPU: Final = "nvidia.com/gpu"
_FIT: Final = {1: 14, 2: 6, 3: 4}
"""GPUs of a worker → workers that two nodes of 8 GPUs hold beside two masters with one each."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """Workers with a node, by job, after one event."""

    at: float
    """Monotonic, s."""
    placed: Mapping[str, int]


class Placements:
    """Follows the workers of a namespace."""

    def __init__(self, kubectl: Kubectl) -> None:
        """Begin at once."""
        chosen = ("--selector=holdfast.dev/role=worker", "--output-watch-events")
        self._process = kubectl.start("get", "pods", "--watch", "-o", "json", *chosen)
        self._placed: dict[str, set[str]] = collections.defaultdict(set)
        self.moments: list[Moment] = []
        """Every change of a number, oldest first."""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See no more."""
        self._process.terminate()
        self._process.wait(10)
        self._thread.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def of(self, job: str) -> int:
        """Return the workers of a job that have a node now."""
        return self.moments[-1].placed.get(job, 0) if self.moments else 0

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for kind, pod in watch_events(self._process.stdout):
            self._see(kind, pod)

    def _see(self, kind: str, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        placed = self._placed[metadata["labels"]["holdfast.dev/job"]]
        over = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        gone = over or kind == "DELETED" or "deletionTimestamp" in metadata
        before = len(placed)
        if gone or not pod["spec"].get("nodeName"):
            placed.discard(metadata["uid"])
        else:
            placed.add(metadata["uid"])
        if len(placed) != before:
            numbers = {job: len(uids) for job, uids in self._placed.items()}
            self.moments.append(Moment(time.monotonic(), numbers))


class Rivals:
    """Two jobs that each fit alone, and not together."""

    def __init__(self, make: Callable[[str], Job], kubectl: Kubectl, seed: int) -> None:
        """Draw them; nothing is made yet."""
        self._chance = random.Random(seed)
        self._kubectl = kubectl
        self._gpus = self._chance.choice(list(_FIT))
        fit = _FIT[self._gpus]
        self.least = {f"{name}{seed}": self._chance.randint(fit // 2 + 1, fit) for name in "ab"}
        """minReplicas of each job."""
        self.replicas = {name: self._chance.randint(one, fit) for name, one in self.least.items()}
        self.jobs = {name: make(name) for name in self.least}
        self.seen = Placements(kubectl)
        self.drawn = f"seed {seed}: {self._gpus} GPUs, {self.least} of {self.replicas}"

    def create(self) -> None:
        """Make both, in an order and with a pause that are drawn."""
        names = self._chance.sample(list(self.jobs), 2)
        pause = self._chance.choice((0.0, 0.0, 0.1, 0.5))
        self.drawn += f", {names} {pause} s apart"
        bodies = [self._body(name) for name in names]
        if not pause:  # their pods are made side by side
            both = {"apiVersion": "v1", "kind": "List", "items": bodies}
            self._kubectl.run("create", "-f", "-", stdin=both)
            return
        for body in bodies:
            self._kubectl.run("create", "-f", "-", stdin=body)
            time.sleep(pause)

    def winner(self) -> str:
        """Wait until one of them has all its workers; return its name."""
        self._until("a job with its workers", lambda: self._whole() != "")
        return self._whole()

    def disturb(self, name: str) -> None:
        """Perhaps take some workers from a job, and wait until it has others."""
        lost = self._chance.choice((0, 0, 1, 2))
        for pod in self._chance.sample(self.jobs[name].pods(), lost):
            self.drawn += f", {pod['metadata']['name']} is lost"
            self._kubectl.run("delete", "pod", pod["metadata"]["name"], "--wait=false")
        wanted = {pod["metadata"]["name"] for pod in self.jobs[name].pods()}
        if lost:
            self._until("successors", lambda: not wanted & set(self._doomed(name)))
        self._until(f"{name} is whole", lambda: self.seen.of(name) == self.replicas[name])

    def faults(self, winner: str, until: float) -> list[str]:
        """Return what must not have been up to a time: the other one with any worker placed."""
        (other,) = self.jobs.keys() - {winner}
        return [
            f"{self.drawn}: {moment.placed} while {winner} ran"
            for moment in self.seen.moments
            if moment.at <= until and moment.placed.get(other, 0)
        ]

    def half_started(self) -> list[str]:
        """Return the moments at which both had begun to be placed, and neither was whole yet."""
        whole: set[str] = set()
        found = []
        for moment in self.seen.moments:
            whole |= {name for name, one in moment.placed.items() if one >= self.least[name]}
            half = [name for name, one in moment.placed.items() if one and name not in whole]
            if len(half) > 1:
                found.append(f"{self.drawn}: {moment.placed}")
        return found

    def longest_half(self, name: str) -> float:
        """Return the time between the first of a job's workers with a node and enough of them."""
        mine = [(one.at, one.placed.get(name, 0)) for one in self.seen.moments]
        first = next(at for at, placed in mine if placed)
        return next(at for at, placed in mine if placed >= self.least[name]) - first

    def _doomed(self, name: str) -> list[str]:
        pods = self.jobs[name].pods()
        return [one["metadata"]["name"] for one in pods if "deletionTimestamp" in one["metadata"]]

    def _whole(self) -> str:
        return next((one for one in self.jobs if self.seen.of(one) >= self.least[one]), "")

    def _until(self, what: str, happens: Callable[[], bool]) -> None:
        job = next(iter(self.jobs.values()))
        job.until(f"{what} ({self.drawn})", happens)

    def _body(self, name: str) -> dict[str, Any]:
        body = manifest(
            "true",
            replicas=self.replicas[name],
            minReplicas=self.least[name],
            scheduling__gang__backend="Upstream",
        )
        body["metadata"]["name"] = name
        container(body)["resources"] = {"limits": {GPU: self._gpus}}
        on_paper(pod_spec(body))
        master = {
            "containers": [{"name": "master", "image": "i", "resources": {"limits": {GPU: 1}}}]
        }
        on_paper(master)
        body["spec"]["master"] = {"template": {"spec": master}}
        return body


def on_paper(spec: dict[str, Any]) -> None:
    """Have a pod of this spec run on a node of paper."""
    spec["nodeSelector"] = {KEY: "true"}
    spec["tolerations"] = [{"key": KEY, "operator": "Exists"}]
