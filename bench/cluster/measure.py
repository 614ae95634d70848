"""Measures the cluster: each function takes a stage and returns figures; `page` has their bars."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from bench.cluster.stage import Stage
from cluster.audit import most_in_a_second, uses
from cluster.churn import Witness
from cluster.jobs import Job, container, manifest, training
from cluster.outages.killing import Killing
from cluster.release import ACCOUNT
from holdfast_operator.plan.history import SETTLED_SECONDS

Figures = dict[str, Any]
_GPUS: Final = {"limits": {"nvidia.com/gpu": 8}}
_PATIENCE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.005


def begin(stage: Stage, count: int = 5) -> Figures:
    """Measure from `helm install` to a ready operator, and from a job to its first step.

    Each time anew; the first time, which warms the machine's caches, does not count.
    """
    ready, first = [], []
    for number in range(count + 1):
        stage.release.uninstall()
        # The operator loses its rights before it ends, and cannot give its Lease back: an operator
        # that is installed anew at once waits up to 15 s for it. A new cluster has none.
        stage.release.kubectl.try_run("delete", "lease", "--all")
        since = time.time()
        stage.release.install()
        ready.append(time.time() - since)
        folder = stage.folder / f"begin-{number}"
        folder.mkdir()
        job, step = stage.job(f"begin-{number}"), folder / "state.pt"
        since = time.time()
        job.create(training(folder, "--step-seconds=0.5", replicas=2))
        _wait(step.exists)
        first.append(time.time() - since)
        job.delete()
    ready, first = sorted(ready[1:]), sorted(first[1:])
    return {
        "times": count,
        "ready_median_s": _quantile(ready, 0.5),
        "ready_max_s": round(ready[-1], 2),
        "first_step_median_s": _quantile(first, 0.5),
        "first_step_max_s": round(first[-1], 2),
    }


def replacement(stage: Stage, seed: int, rounds: int = 10, workers: int = 10) -> Figures:
    """Measure from the event that a worker's pod is gone to the event that its successor exists.

    Each pod has lived for so long that its end does not look like one that cannot start: those
    are waited for on purpose.
    """
    chance = random.Random(seed)
    job = stage.job("replace")
    job.create(manifest("sleep", "3600", replicas=workers))
    job.until("its pods", lambda: len(job.live()) == workers)
    witness = Witness(stage.kubectl)
    took = []
    try:
        for number in range(rounds):
            time.sleep(SETTLED_SECONDS)
            for rank in chance.sample(range(workers), workers):
                old, new = (f"replace-worker-{rank}-{number + more}" for more in (0, 1))
                stage.kubectl.run("delete", "pod", old, "--force", "--grace-period=0")
                both = {("DELETED", old), ("ADDED", new)}
                _wait(lambda both=both: both <= witness.times.keys())
                took.append(witness.times["ADDED", new] - witness.times["DELETED", old])
            job.until("its pods", lambda: len(job.live()) == workers)
    finally:
        witness.stop()
    job.delete()
    took.sort()
    return {
        "pods": len(took),
        "p50_s": _quantile(took, 0.5),
        "p99_s": _quantile(took, 0.99),
        "max_s": round(took[-1], 3),
    }


def many(stage: Stage, workers: int = 200) -> Figures:
    """Measure from the job's first pod, its master, to its last worker's; no node takes them."""
    job = stage.job("many")
    body = manifest("sleep", "3600", replicas=workers)
    body["spec"]["worker"]["template"]["spec"]["nodeSelector"] = {"nowhere": "yes"}
    witness = Witness(stage.kubectl)
    try:
        job.create(body)
        _wait(lambda: sum(kind == "ADDED" for kind, _ in witness.times) > workers)
        made = sorted(at for (kind, _), at in witness.times.items() if kind == "ADDED")
    finally:
        witness.stop()
    job.delete()
    return {
        "workers": workers,
        "seconds": round(made[-1] - made[0], 2),
        "pods_per_s": round(workers / (made[-1] - made[0])),
    }


def lost_node(stage: Stage, count: int = 5) -> Figures:
    """Measure from a node's silence to the smaller world's first step, with real torch on gloo."""
    job = stage.job("lost")
    body = training(stage.folder, replicas=2, minReplicas=1)
    container(body)["resources"] = _GPUS
    job.create(body)
    took = []
    for _ in range(count):
        job.until_training(2)
        job.until_steps(40)
        (node, *_) = stage.nodes_without_us(job)
        took.append(_lose(stage, job, stage.folder, node, 1))
    job.delete()
    return {"nodes": count, "median_s": _quantile(sorted(took), 0.5), "max_s": round(max(took), 2)}


def _lose(stage: Stage, job: Job, folder: Path, node: str, left: int) -> float:
    """Lose a node, and get it back; return the seconds until fewer workers trained again."""
    steps = Steps(folder / "state.pt")
    begin = time.time()
    stage.nodes.tell("lose", node=node)
    job.until("the smaller world", lambda: job.world.get("activeReplicas") == left)
    job.until_steps(20)
    took = steps.stop().again_after(begin) - begin
    stage.nodes.tell("return", node=node)
    stage.kubectl.run("wait", f"node/{node}", "--for=condition=Ready", "--timeout=50s")
    return took


def lost_master_node(stage: Stage, count: int = 10) -> Figures:
    """Measure the loss of a node with the job's master and a worker; each time in a new job."""
    stage.close_own_nodes()  # a worker on each of the other three, the master beside one of them
    took, masters = [], 0
    for number in range(count):
        folder = stage.folder / f"both-{number}"
        folder.mkdir()
        job = stage.job(f"both-{number}")
        body = training(folder, replicas=3, minReplicas=1)
        container(body)["resources"] = _GPUS
        job.create(body)
        job.until_training(3)
        job.until_steps(40)
        (node,) = {pod["spec"]["nodeName"] for pod in job.pods("master")}
        took.append(_lose(stage, job, folder, node, 2))
        masters += job.status["masterPods"] - 1
        job.delete()
    return {
        "nodes": count,
        "median_s": _quantile(sorted(took), 0.5),
        "max_s": round(max(took), 2),
        "new_masters": masters,
    }


def lost_master(stage: Stage, count: int = 10) -> Figures:
    """Delete the master's pod under a job that trains; measure what the job's ranks notice."""
    job = stage.job("adopt")
    job.create(training(stage.folder, replicas=2))
    job.until_training(2)
    first, away, pauses = job.status, [], []
    steps = Steps(stage.folder / "state.pt")
    for _ in range(count):
        epoch, begin = job.world["epoch"], time.time()
        stage.kubectl.run("delete", "pod", "-l", "holdfast.dev/role=master", "--wait=false")
        job.until("the next master", lambda epoch=epoch: job.world["epoch"] > epoch)  # type: ignore[misc]
        job.until("its word", lambda: job.holds("MasterReady"))
        away.append(time.time() - begin)
        job.until_steps(10)
        pauses.append(steps.longest_pause_after(begin))
    steps.stop()
    last = job.status
    began = sum(_begins(stage, pod["metadata"]["name"]) for pod in job.pods())
    job.delete()
    return {
        "masters": count,
        "new_rounds": last["world"]["round"] - first["world"]["round"],
        "processes_begun_again": began - 2,
        "median_until_adopted_s": _quantile(sorted(away), 0.5),
        "longest_pause_between_steps_s": round(max(pauses), 3),
    }


def writes(stage: Stage, workers: int = 4) -> Figures:
    """Count the requests of the operator's account over one job's life in the API's audit log."""
    begin = time.time()
    job = stage.job("life")
    folder = stage.folder / "writes"
    folder.mkdir()
    job.create(training(folder, "--steps=300", replicas=workers, cleanup__pods="All"))
    job.until_over()
    job.until("no pods", lambda: not job.pods() + job.pods("master"))
    job.delete()
    time.sleep(1.0)  # the log is written behind
    found = [one for one in uses(stage.plane.audit_log, ACCOUNT) if one.at >= begin]
    pods = Counter(one.verb for one in found if one.resource == "pods" and not one.trial)
    status = sorted(one.at for one in found if one.resource == "elasticjobs/status")
    return {
        "workers": workers,
        "creates_per_worker": round((pods["create"] - 1) / workers, 2),
        "deletes_per_worker": round((pods["delete"] - 1) / workers, 2),
        "status_writes": len(status),
        "status_writes_per_s": round(len(status) / max(1.0, status[-1] - status[0]), 2),
        "most_status_writes_in_a_second": most_in_a_second(status),
        "all_writes": sum(
            one.verb in {"create", "patch", "delete"} and "leases" not in one.resource
            for one in found
        ),
    }


def kills(stage: Stage, seed: int, count: int = 210) -> Figures:
    """Kill the operator at drawn points of its work while jobs change."""
    folder = stage.folder / "kills"
    folder.mkdir()
    killing = Killing(stage.job, stage.kubectl, stage.release, folder, seed)
    try:
        killing.run(count)
    finally:
        killing.stop()
    said = Counter(line.split()[1] for line in killing.kills)
    return {
        "seed": seed,
        "kills": len(killing.kills),
        "before_a_write": said["before"],
        "right_after_a_write": sum(
            " after /" not in one and re.search(r"after [A-Z]+ /", one) is not None
            for one in killing.kills
        ),
        "changes": killing.changes,
        "pods": killing.pods,
        "faults": killing.faults,
    }


class Steps:
    """The times at which a job's state file changed: once a step."""

    def __init__(self, file: Path) -> None:
        """Watch the state file from now on."""
        self._file, self._over = file, threading.Event()
        self._times: list[float] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Steps:
        """Stop watching the state file."""
        self._over.set()
        self._thread.join()
        return self

    def again_after(self, moment: float) -> float:
        """Return the time at which the longest pause after a moment was over."""
        return max(self._gaps(moment))[1]

    def longest_pause_after(self, moment: float) -> float:
        """Return the longest time between two steps after a moment, s."""
        return max(self._gaps(moment))[0]

    def _gaps(self, moment: float) -> list[tuple[float, float]]:
        times = [one for one in list(self._times) if one > moment - 1]
        return [(b - a, b) for a, b in itertools.pairwise(times)]

    def _watch(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            at = self._file.stat().st_mtime
            if not self._times or at != self._times[-1]:
                self._times.append(at)


def _wait(happens: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(_POLL_SECONDS)


def _quantile(ordered: list[float], part: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)


def _begins(stage: Stage, pod: str) -> int:
    return stage.kubectl.run("logs", pod).count(" begins after step ")
