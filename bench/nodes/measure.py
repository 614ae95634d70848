"""Starts and losses of a job on real nodes, each as a few lengths of time."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import psutil

from cluster.jobs import Job
from cluster.real.jobs import RealStep, next_step, real_job, starts, steps
from cluster.real.node import RealNode, RealNodes

Parts = dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One measurement."""

    kind: str
    load: float
    """Of the machine before it, 1 minute."""
    parts: Parts
    """Seconds, by what they are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bed:
    """Inputs of a measurement."""

    job: Job
    nodes: RealNodes
    folder: Path


def applied(bed: Bed) -> Parts:
    """Apply a job anew; until its first step."""
    _forget(bed)
    since = time.time()
    bed.job.create(real_job(bed.folder))
    first = next_step(bed.job, bed.folder, since)
    return {"until the first step": first.at - since}


def killed(bed: Bed) -> Parts:
    """Kill the container of a worker; the kubelet starts it again.

    In a job made anew: a container that ends a second time within ten minutes waits for 10 s first.
    """
    applied(bed)
    _settle(bed)
    pod = bed.job.pods()[-1]
    since = time.time()
    bed.nodes.kill_container(pod)
    again = _from_memory(bed, since)
    node = bed.nodes[pod["spec"]["nodeName"]]
    container = _started(node, since)
    start = max(starts(bed.folder, again.round), key=lambda one: one.script)
    joined = _logged(bed, pod, ": welcomed by")
    ready = _logged(bed, pod, ": ready for ranks")
    decided = _logged(bed, pod, f": round {again.round}: ")
    return {
        "until the next step": again.at - since,
        "kubelet and containerd start the container": container - since,
        "Python imports the agent, which joins": joined - container,
        "it imports what ranks need": ready - joined,
        "the master decides on a round": decided - ready,
        "the rank is forked, and joins": start.joined - decided,
        "torch makes process group and model": start.model - start.joined,
        "the checkpoint is restored from memory": start.loaded - start.model,
        "the first step": again.at - start.loaded,
    }


def lost(bed: Bed) -> Parts:
    """Lose the node that has a worker and neither the operator nor the job's master."""
    job = bed.job
    _spread(bed)
    since = time.time()
    bed.nodes["n2"].lose()
    try:
        again = _from_memory(bed, since)
        whole = next_step(job, bed.folder, since, 2)
    finally:
        bed.nodes["n2"].start()
        bed.nodes["n2"].ready()
    return {
        "until the next step": again.at - since,
        "until it is at full size": whole.at - since,
    }


def _from_memory(bed: Bed, since: float) -> RealStep:
    again = next_step(bed.job, bed.folder, since)
    if not again.begun:
        raise RuntimeError("the round began anew: no checkpoint was restored")
    return again


def _forget(bed: Bed) -> None:
    bed.job.delete()
    for file in bed.folder.glob("*"):
        file.unlink()


def _spread(bed: Bed) -> None:
    """Make the job anew with its master on the first node, and a worker on each."""
    job = bed.job
    _forget(bed)
    job.kubectl.run("cordon", "n2")
    job.create(real_job(bed.folder))
    job.until_training(2)
    job.kubectl.run("uncordon", "n2")
    job.kubectl.run("delete", "pod", f"{job.name}-worker-1-0", "--wait=false")
    job.until("a worker on each node", lambda: _on(job, "worker") == "n1 n2")
    _settle(bed)


def _on(job: Job, role: str) -> str:
    return " ".join(sorted({pod["spec"].get("nodeName", "") for pod in job.pods(role)}))


def _settle(bed: Bed) -> None:
    bed.job.until_training(2)

    def saved() -> bool:
        made = steps(bed.folder)
        return made[-1].world == 2 and made[-1].number > made[-1].begun + 60

    bed.job.until("60 steps", saved)


def _started(node: RealNode, since: float) -> float:
    """Return when the newest agent on a node was started."""
    below = psutil.Process(node.pid).children(recursive=True)
    agents = [one.create_time() for one in below if "holdfast-run" in " ".join(one.cmdline())]
    return min(at for at in agents if at > since)


def _logged(bed: Bed, pod: dict[str, Any], words: str) -> float:
    """Return when a pod's newest container printed a line, as the kubelet has it."""
    text = bed.job.kubectl.run("logs", pod["metadata"]["name"], "--timestamps")
    line = next(line for line in text.splitlines() if words in line)
    stamp = line.split()[0].rstrip("Z")[:26]
    return (
        time.mktime(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
        - time.timezone
        + float(stamp[19:] or 0)
    )
