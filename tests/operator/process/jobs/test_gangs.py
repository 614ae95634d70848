"""Workers that the real scheduler places together or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.gangs import GPU, Placements, Rivals, on_paper
from cluster.jobs import Job, Make, container, manifest, pod_spec
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.rights import needs_pods
from house.extended import usual

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
MORE = pytest.mark.extended(
    "other orders of the same two jobs",
    held_by=["operator/process/jobs/test_gangs.py::test_of_two_jobs_one_waits_whole"],
)

ZONE = "topology.kubernetes.io/zone"
_TELL = """
import os, holdfast
job = holdfast.init()
print("rank", os.environ["RANK"], "in", os.environ["HOLDFAST_TOPOLOGY"], flush=True)
for step in range(1, 6):
    job.step(step)
"""


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    """Two nodes for the operator and for real training, two on paper."""
    with Nodes(plane, paper=2) as started:
        yield started


@pytest.mark.parametrize("seed", usual(range(50), 0, more=MORE))
def test_of_two_jobs_one_waits_whole(make_job: Make, kubectl: Kubectl, seed: int) -> None:
    """None of its workers has a node while the other runs; when that is gone it starts whole."""
    rivals = Rivals(make_job, kubectl, seed)
    try:
        rivals.create()
        first = rivals.winner()
        rivals.disturb(first)
        (second,) = rivals.jobs.keys() - {first}
        waiting = rivals.jobs[second]
        waiting.until("its word", lambda: _reason(waiting, "QuorumReady") == "Unschedulable")
        until = time.monotonic()
        rivals.jobs[first].delete()
        waiting.until(
            f"{second} is whole ({rivals.drawn})",
            lambda: rivals.seen.of(second) == rivals.replicas[second],
        )
        assert rivals.faults(first, until) == []
        assert rivals.half_started() == []
        longest = max(rivals.longest_half(name) for name in rivals.jobs)
        print(f"{rivals.drawn}: at most {longest:.2f} s from the first node to minReplicas of them")
        masters = [pod for job in rivals.jobs.values() for pod in job.pods("master")]
        assert masters
        assert not any("schedulingGroup" in pod["spec"] for pod in masters)
    finally:
        rivals.seen.stop()


def test_two_jobs_train_to_their_end_one_after_the_other(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Each needs both nodes, whose zones order the ranks; no master is in the other's way."""
    seen = Placements(kubectl)
    try:
        jobs = [make_job("one"), make_job("other")]
        for job in jobs:
            script = tmp_path / f"{job.name}.py"
            script.write_text(_TELL)
            body = manifest("holdfast-run", "--nproc-per-node=1", str(script), replicas=2)
            body["spec"]["scheduling"] = {"gang": {"backend": "Auto"}, "topology": {"key": ZONE}}
            container(body)["resources"] = {"limits": {GPU: 8}}
            job.create(body)
        assert [job.ended()[0] for job in jobs] == ["Complete", "Complete"]
        placed = [tuple(moment.placed.get(job.name, 0) for job in jobs) for moment in seen.moments]
        assert {(2, 0), (0, 2)} <= set(placed)
        assert {(1, 1), (1, 2), (2, 1)}.isdisjoint(placed), placed
        for job in jobs:
            said = [kubectl.run("logs", pod["metadata"]["name"]) for pod in job.pods()]
            for rank in range(2):
                assert f"rank {rank} in {ZONE}=z{rank}\n" in "".join(said)
    finally:
        seen.stop()


def _reason(job: Job, kind: str) -> str:
    return str(job.condition(kind).get("reason"))


def _group(kubectl: Kubectl, job: Job) -> dict[str, Any]:
    """Return the spec of a job's PodGroup; empty: there is none."""
    every = kubectl.json("get", "podgroups")["items"]
    named = (one["spec"] for one in every if one["metadata"]["name"] == f"{job.name}-worker")
    return next(named, {})


def _least(kubectl: Kubectl, job: Job) -> int:
    spec = _group(kubectl, job)
    return int(spec["schedulingPolicy"]["gang"]["minCount"]) if spec else 0


def test_a_group_follows_its_jobs_size_and_goes_with_a_suspension(
    make_job: Make, kubectl: Kubectl
) -> None:
    """Without minReplicas all workers are the gang, also after a change of size."""
    job = make_job("sized")
    body = manifest("true", replicas=2, maxReplicas=4, scheduling__gang__backend="Auto")
    body["spec"]["elasticPolicy"] = {"scaleDownGraceSeconds": 1}
    on_paper(pod_spec(body))
    job.create(body)
    job.until("two workers", lambda: len(job.live()) == 2)
    assert _least(kubectl, job) == 2
    job.until("its condition", lambda: job.holds("GangReady"))
    said = job.condition("GangReady")["message"]
    assert said == "PodGroup scheduling.k8s.io/v1beta1 sized-worker: at least 2 at once"
    for size in (4, 1):
        job.patch(replicas=size)
        job.until(f"{size} workers", lambda size=size: len(job.live()) == size)  # type: ignore[misc]
        assert _least(kubectl, job) == size
    job.patch(suspend=True)
    job.until("no group", lambda: _group(kubectl, job) == {})
    job.patch(suspend=False, replicas=3)
    job.until("three workers", lambda: len(job.live()) == 3)
    assert _least(kubectl, job) == 3


def _blocker(node: str, cpus: int, gpus: int) -> dict[str, Any]:
    """Return a pod that takes room on a node of paper."""
    limits = {"cpu": str(cpus), GPU: str(gpus)}
    box = {"name": "box", "image": "i", "resources": {"limits": limits}}
    pod = {"nodeName": node, "containers": [box], "tolerations": [{"operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{node}"}, "spec": pod}


def test_a_gang_is_placed_in_the_zone_that_holds_it(make_job: Make, kubectl: Kubectl) -> None:
    """Not in the one that its first worker would rather have: that has too few devices."""
    for one in (_blocker("n3", 1, 4), _blocker("n4", 60, 0)):
        kubectl.run("create", "-f", "-", stdin=one)
    job = make_job("near")
    body = manifest("true", replicas=3, scheduling__gang__backend="Upstream")
    body["spec"]["scheduling"]["topology"] = {"key": ZONE, "mode": "Required"}
    container(body)["resources"] = {"limits": {GPU: 2}}
    on_paper(pod_spec(body))
    job.create(body)
    job.until("three workers", lambda: len(job.live()) == 3)
    assert {pod["spec"]["nodeName"] for pod in job.pods()} == {"n4"}
    assert _group(kubectl, job)["schedulingConstraints"] == {"topology": [{"key": ZONE}]}


def test_a_scheduler_that_is_not_there_keeps_a_job_from_starting(
    make_job: Make, kubectl: Kubectl
) -> None:
    """It says what to install or to write, and starts once that is written."""
    job = make_job("asks")
    body = manifest("true", replicas=1, scheduling__gang__backend="Volcano")
    on_paper(pod_spec(body))
    job.create(body)
    job.until("its word", lambda: _reason(job, "GangReady") == "NotGrouped")
    remedy = "which this cluster does not serve (it has: Upstream); install it, or write Auto"
    for kind, reason in (("GangReady", "NotGrouped"), ("QuorumReady", "GangMissing")):
        assert _reason(job, kind) == reason
        assert remedy in job.condition(kind)["message"]
    assert job.pods() + job.pods("master") == []
    job.patch(scheduling={"gang": {"backend": "Auto"}})
    job.until("its worker", lambda: len(job.live()) == 1)
    job.until("a group", lambda: job.holds("GangReady"))
    assert _least(kubectl, job) == 1
