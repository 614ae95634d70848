"""The API server is in trouble, or far away: storms, gaps, slow watches, restarts, failover."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Job, Make, manifest, training
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.outages.rough_api import RoughApi
from cluster.release import Release
from cluster.rights import needs_pods
from cluster.watched import watched

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of their own: it is killed here, and what follows stands in its audit log."""
    with watched(ControlPlane(tmp_path_factory.mktemp("outages"))) as started:
        yield started


@pytest.fixture(scope="module")
def rough(plane: ControlPlane) -> Iterator[RoughApi]:
    """Start a rough API between the pods and the API server."""
    seed = random.SystemRandom().randrange(10**6)
    made = RoughApi(plane, seed)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane, rough: RoughApi) -> Iterator[Nodes]:
    """Two nodes whose pods have that way."""
    with Nodes(plane, api_of_pods=rough.port) as started:
        yield started


def _sleeping(replicas: int) -> dict[str, object]:
    """A job whose workers only sleep, and go as soon as they are told."""
    body = manifest("sleep", "3600", grace_s=1, replicas=replicas, minReplicas=1, maxReplicas=8)
    body["spec"]["elasticPolicy"] = {"scaleDownGraceSeconds": 0}
    return body


def _until_exactly(job: Job, replicas: int) -> None:
    job.until(f"{replicas} pods", lambda: len(job.live()) == len(job.pods()) == replicas)
    job.until("the count", lambda: job.status.get("replicas") == replicas)


@pytest.mark.usefixtures("witness")
def test_a_storm_of_refusals_delays_and_doubles_nothing(
    make_job: Make, rough: RoughApi, kubectl: Kubectl
) -> None:
    """Every third request is answered with 429 or 500 while a job begins, grows and shrinks."""
    rough.refused_share = 0.33
    try:
        job = make_job("storm")
        job.create(_sleeping(3))
        _until_exactly(job, 3)
        job.patch(replicas=5)
        _until_exactly(job, 5)
        kubectl.run("delete", "pod", job.live()[0], "--wait=false")
        _until_exactly(job, 5)
        job.patch(replicas=2)
        _until_exactly(job, 2)
    finally:
        rough.refused_share = 0.0
    assert rough.refused > 5


@pytest.mark.usefixtures("witness")
def test_what_went_while_nobody_could_watch_is_made_anew(
    make_job: Make, rough: RoughApi, kubectl: Kubectl
) -> None:
    """Watches broke, their version is gone (410), and two pods with it."""
    job = make_job("gap")
    job.create(_sleeping(3))
    _until_exactly(job, 3)
    rough.open_gap()
    gone = ["gap-worker-0-0", "gap-worker-2-0"]
    kubectl.run("delete", "pod", *gone, "--force", "--grace-period=0")
    assert job.live() == ["gap-worker-1-0"]
    rough.close_gap()
    expected = ["gap-worker-0-1", "gap-worker-1-0", "gap-worker-2-1"]
    job.until("their successors", lambda: job.live() == expected)


@pytest.mark.usefixtures("witness")
def test_a_slow_watch_makes_nobody_ask_twice(
    make_job: Make, plane: ControlPlane, rough: RoughApi, kubectl: Kubectl
) -> None:
    """The copy of the cluster lags seconds behind: one pod a place, one request for each."""
    begin = len(plane.audit_log.read_text().splitlines())
    rough.watch_delay_s = 2.0
    rough.open_gap()  # the watches that are open are not slow yet
    rough.close_gap()
    try:
        job = make_job("slow")
        job.create(_sleeping(4))
        _until_exactly(job, 4)
        kubectl.run("delete", "pod", "slow-worker-3-0", "--wait=false")
        job.until("its successor", lambda: "slow-worker-3-1" in job.live())
    finally:
        rough.watch_delay_s = 0.0
        rough.open_gap()
        rough.close_gap()
    job.delete()
    lines = plane.audit_log.read_text().splitlines()[begin:]
    made = [one for one in lines if '"verb":"create"' in one and '"resource":"pods"' in one]
    tried = [one for one in made if "dryRun" not in one and f"/{kubectl.namespace}/" in one]
    assert len(tried) == 6  # a master, four workers, one successor


def test_the_control_plane_comes_back_under_a_job_that_trains(
    make_job: Make, plane: ControlPlane, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """API server and etcd are killed and started again: not a step is lost, and work goes on."""
    job = make_job("plane")
    job.create(training(tmp_path, replicas=1, maxReplicas=2))
    job.until_training(1)
    world = job.world
    for name, start in (("kube-apiserver", plane.start_api_server), ("etcd", plane.start_etcd)):
        stood = (tmp_path / "state.pt").stat().st_mtime_ns
        plane.kill(name)
        job.plane.until("a step", lambda stood=stood: _wrote(tmp_path, stood))  # type: ignore[misc]
        start()
        plane.until("the API server", lambda: plane.api.get("/readyz").ok)
        job.until_steps()
    assert job.world["round"] == world["round"]
    kubectl.run("scale", "ej", "plane", "--replicas=2")
    job.until_training(2)


def _wrote(folder: Path, since: int) -> bool:
    return (folder / "state.pt").stat().st_mtime_ns > since


@pytest.mark.usefixtures("witness")
def test_another_replica_takes_over_from_a_leader_that_is_gone(
    make_job: Make, release: Release, kubectl: Kubectl
) -> None:
    """Its Lease runs out; the other one goes on where it stopped, and the job's pods stay."""
    # The test before has kept the API server away for longer than a Lease may last here.
    release.until_rolled_out()
    release.upgrade("replicas=2")
    job = make_job("heir")
    job.create(_sleeping(2))
    _until_exactly(job, 2)
    lease = ("get", "lease", "holdfast-operator")
    leader = release.kubectl.json(*lease)["spec"]["holderIdentity"]
    release.kubectl.run("delete", "pod", leader, "--force", "--grace-period=0")
    before = job.uids()
    kubectl.run("delete", "pod", "heir-worker-1-0")
    job.until("its successor", lambda: len(job.live()) == 2)
    assert len(job.uids() & before) == 1
    assert release.kubectl.json(*lease)["spec"]["holderIdentity"] != leader


def test_a_leader_that_wakes_from_a_freeze_ends_without_a_write(
    make_job: Make, plane: ControlPlane, nodes: Nodes, release: Release, kubectl: Kubectl
) -> None:
    """Another one has led meanwhile; whatever it finds in its queues, it does nothing of it."""
    release.upgrade("replicas=2")
    job = make_job("frozen")
    job.create(_sleeping(2))
    _until_exactly(job, 2)
    path = "/spec/template/spec/containers/0/livenessProbe/failureThreshold"
    patch = [{"op": "add", "path": path, "value": 1000}]  # frozen for longer than probes allow
    words = ("deploy", "holdfast-operator", "--type=json")
    release.kubectl.run("patch", *words, "-p", json.dumps(patch))
    release.until_rolled_out()
    holder = ("get", "lease", "holdfast-operator", "-o", "jsonpath={.spec.holderIdentity}")
    job.until("a new leader", lambda: release.kubectl.run(*holder) in _operators(release))
    leader = release.kubectl.run(*holder)
    pod = {"namespace": release.kubectl.namespace, "pod": leader}
    nodes.tell("kill", **pod, signal=signal.SIGSTOP)
    kubectl.run("delete", "pod", "frozen-worker-1-0", "--wait=false")
    job.patch(replicas=3)  # both are what it hears of when it wakes
    job.until("the next leader", lambda: release.kubectl.run(*holder) != leader)
    begin = len(plane.audit_log.read_text().splitlines())
    nodes.tell("kill", **pod, signal=signal.SIGCONT)
    job.until("its end", lambda: _last_exit(release, leader) is not None)
    assert _last_exit(release, leader) == 3
    _until_exactly(job, 3)
    lines = map(json.loads, plane.audit_log.read_text().splitlines()[begin:])
    assert [one["requestURI"] for one in lines if _is_write_of(one, leader)] == []
    job.delete()
    release.upgrade("replicas=1")


def _operators(release: Release) -> list[str]:
    """Names of the operator's pods that stay."""
    pods = release.kubectl.json("get", "pods")["items"]
    return [one["metadata"]["name"] for one in pods if "deletionTimestamp" not in one["metadata"]]


def _last_exit(release: Release, pod: str) -> int | None:
    """The exit code of the operator's last end in a pod; None: it has not ended."""
    (one,) = release.kubectl.json("get", "pod", pod)["status"]["containerStatuses"]
    for state in (one.get("state") or {}, one.get("lastState") or {}):
        if "terminated" in state:
            return int(state["terminated"]["exitCode"])
    return None


def _is_write_of(event: dict[str, Any], pod: str) -> bool:
    """Return whether a request from this pod would change something other than a Lease."""
    extra = event["user"].get("extra") or {}
    mine = pod in (extra.get("authentication.kubernetes.io/pod-name") or ())
    changes = event["verb"] not in {"get", "list", "watch"}
    return mine and changes and event["objectRef"]["resource"] != "leases"
