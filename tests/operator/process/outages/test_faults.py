"""Faults of pods, nodes and the cluster's own rules under a job that trains with real torch.

Certificates last one minute here, so that every job of these tests lives through renewals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Job, Make, container, manifest, training
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import Release
from cluster.rights import needs_pods
from holdfast_operator.pods.record import read_pod

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("witness"),
    needs_pods,
]
_GPUS = {"limits": {"nvidia.com/gpu": 8}}
_LIFETIME_DAYS = 60 / 86_400


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> Iterator[Nodes]:
    """Four nodes: with a worker on each of two, one can go that has neither master nor operator."""
    with Nodes(plane, count=4) as started:
        yield started


@pytest.fixture(scope="module")
def release(plane: ControlPlane, nodes: Nodes) -> Iterator[Release]:
    """The operator, with certificates that do not last."""
    installed = Release(plane.kubeconfig)
    installed.clear()
    # helm takes a fraction after --set for a text.
    installed.install(flags=(f"--set-json=settings.certificateDays={_LIFETIME_DAYS:.8f}",))
    yield installed
    installed.remove()


def _spread(folder: Path, *flags: str, **spec: Any) -> dict[str, Any]:
    """A job whose workers have a node each."""
    body = training(folder, *flags, **{"replicas": 2, "minReplicas": 1, **spec})
    container(body)["resources"] = _GPUS
    return body


def _have_left(job: Job, node: str) -> bool:
    """Return whether all pods of a job have a place, none of them on a node."""
    places = [pod["spec"].get("nodeName") for pod in job.pods()]
    return all(places) and node not in places


def _node_of(job: Job, release: Release) -> tuple[str, str]:
    """A worker that is neither beside the master nor beside the operator, and its node."""
    others = {pod["spec"]["nodeName"] for pod in job.pods("master")}
    others |= {pod["spec"]["nodeName"] for pod in release.kubectl.json("get", "pods")["items"]}
    live = [pod for pod in job.pods() if pod["metadata"]["name"] in job.live()]
    free = [pod for pod in live if pod["spec"]["nodeName"] not in others]
    assert free, job.seen()
    return free[0]["metadata"]["name"], free[0]["spec"]["nodeName"]


def _stays(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def test_pods_that_others_take_away_never_spend_the_failure_budget(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """Drained under a budget, tainted, preempted by priority: preemptions, every time."""
    job = make_job("taken")
    job.create(_spread(tmp_path, scheduling={"podDisruptionBudget": "MinReplicas"}, minReplicas=2))
    job.until_training(2)
    _, node = _node_of(job, release)
    # Workers have volumes in memory, whose end kubectl wants to be told of.
    drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
    refused = kubectl.try_run(*drain, "--timeout=10s")
    assert "disruption budget" in refused.stdout + refused.stderr
    assert len(job.live()) == 2
    job.patch(minReplicas=1)
    kubectl.run(*drain, "--timeout=50s")
    job.until_training(2)
    kubectl.run("uncordon", node)
    job.until("its account", lambda: job.used().get("preemptions", 0) >= 1)

    _, node = _node_of(job, release)
    kubectl.run("taint", "node", node, "broken=yes:NoExecute")
    job.until("the move", lambda: node not in {p["spec"].get("nodeName") for p in job.pods()})
    job.until_training(2)
    kubectl.run("taint", "node", node, "broken-")
    job.until("its account", lambda: job.used().get("preemptions", 0) >= 2)
    before = job.used()["preemptions"]

    _preempt(kubectl, job)
    job.until("a preemption", lambda: job.used()["preemptions"] > before)
    kubectl.run("delete", "pod", "-l", "app=urgent", "--wait=false")
    job.until_training(2)
    assert "failures" not in job.used(), job.seen()
    assert job.status["masterPods"] == 1, f"its master was well all the time\n{job.seen()}"


def test_a_taint_that_announces_a_node_s_end_has_its_worker_save_and_leave(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """Nobody deletes the pod: its job does, and makes one elsewhere; the preemption budget pays."""
    job = make_job("noticed")
    job.create(_spread(tmp_path))
    job.until_training(2)
    pod, node = _node_of(job, release)
    kubectl.run("taint", "node", node, "karpenter.sh/disrupted:NoSchedule")
    try:
        job.until("the move", lambda: _have_left(job, node))
        job.until_training(2)
        job.until("its account", lambda: job.used().get("preemptions", 0) == 1)
    finally:
        kubectl.run("taint", "node", node, "karpenter.sh/disrupted-")
    told = {
        event["reason"]: event["note"]
        for event in kubectl.json("get", "events.events.k8s.io")["items"]
        if event["regarding"].get("name") == job.name
    }
    assert "taint karpenter.sh/disrupted" in told["NoticeReceived"], job.seen()
    assert "BarrierReached" in told, job.seen()
    assert pod not in job.live()
    assert "failures" not in job.used(), job.seen()


@pytest.mark.extended(
    "each kind of it has a test",
    held_by=[
        "operator/process/outages/test_losses.py::test_a_node_that_is_started_anew_spends_no_failure",
        "operator/process/outages/test_faults.py::test_pods_that_others_take_away_never_spend_the_failure_budget",
    ],
)
def test_a_node_that_comes_back_and_an_eviction_cost_no_failure(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """Its Lease stops while its processes live, and goes on; then a kubelet runs out of memory.

    One that ends a pod for its own limit does cost one: the next pod will be no better.
    """
    job = make_job("quiet")
    job.create(_spread(tmp_path))
    job.until_training(2)
    pod, node = _node_of(job, release)
    nodes.tell("silence", node=node)
    # What an operator that has just begun knows of a lost master, too: as a real cluster says it.
    job.until("the cluster's first word", lambda: _unheard(job) == [pod])
    job.until("the cluster's verdict", lambda: pod not in _staying(job))
    job.until("its successor", lambda: len(job.live()) == 2)
    job.until_training(2)
    nodes.tell("return", node=node)
    job.until("the old pod's end", lambda: len(job.pods()) == 2)
    kubectl.run("wait", f"node/{node}", "--for=condition=Ready", "--timeout=30s")
    job.until_training(2)
    job.until("its account", lambda: job.used().get("preemptions", 0) >= 1)

    before = job.used()["preemptions"]
    evicted = job.live()[-1]
    nodes.tell("evict", namespace=kubectl.namespace, pod=evicted)
    job.until("its successor", lambda: evicted not in job.live() and len(job.live()) == 2)
    job.until("its account", lambda: job.used()["preemptions"] == before + 1)
    job.until_training(2)
    assert "failures" not in job.used(), job.seen()
    job.until("its event", lambda: "Evicted" in kubectl.run("describe", "ej", "quiet"))

    limited = job.live()[-1]
    nodes.tell("evict", namespace=kubectl.namespace, pod=limited, limit=True)
    job.until("its account", lambda: job.used().get("failures") == 1)
    job.until_training(2)


def _unheard(job: Job) -> list[str]:
    read = [record for record in map(read_pod, job.pods()) if record is not None]
    return [record.name for record in read if record.unheard]


def _staying(job: Job) -> set[str]:
    return {pod["metadata"]["name"] for pod in job.pods() if _stays(pod)}


def _preempt(kubectl: Kubectl, job: Job) -> None:
    """Make pods of a higher priority that fill every node."""
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    kubectl.run("apply", "-f", "-", stdin=urgent)
    for number in range(3):
        one = {"name": "c", "image": "i", "command": ["sleep", "600"], "resources": _GPUS}
        spec: dict[str, Any] = {"priorityClassName": "urgent", "containers": [one]}
        metadata = {"name": f"urgent-{number}", "labels": {"app": "urgent"}}
        spec["terminationGracePeriodSeconds"] = 1
        kubectl.run("create", "-f", "-", stdin=_pod(metadata, spec))


def _pod(metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_pods_that_die_hang_or_lose_their_secret_are_made_anew(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """Out of memory, in its pod; stuck Terminating; without the Secret that the next one mounts."""
    job = make_job("dies")
    job.create(training(tmp_path, replicas=2, minReplicas=1))
    job.until_training(2)
    nodes.tell("kill", namespace=namespace, pod="dies-worker-1-0", reason="OOMKilled")
    job.until("its next start", lambda: _restarts(job, "dies-worker-1-0") == 1)
    job.until_training(2)
    # A loss is charged when its incident closes: ten seconds after the next step.
    job.until("its account", lambda: job.used().get("failures") == 1)
    told = kubectl.run("describe", "ej", "dies")
    assert "OOMKilled" in told

    (node,) = {
        pod["spec"]["nodeName"]
        for pod in job.pods()
        if pod["metadata"]["name"] == "dies-worker-1-0"
    }
    nodes.tell("stick", node=node, on=True)
    kubectl.run("delete", "secret", "dies-worker-tls-0", "dies-user-tls", "dies-master-tls")
    kubectl.run("delete", "pod", "dies-worker-1-0", "--wait=false")
    job.until("its successor", lambda: "dies-worker-1-1" in job.live())
    nodes.tell("stick", node=node, on=False)
    job.until_training(2)
    kubectl.run("get", "secret", "dies-worker-tls-0", "dies-user-tls", "dies-master-tls")
    assert job.used()["failures"] == 1
    job.until("no old pod", lambda: len([p for p in job.pods() if _stays(p)]) == 2)


@pytest.mark.extended(
    "the agent finds such a shell in a container of its own, and a pod that leaves saves",
    held_by=[
        "agent/process/test_standalone.py::test_a_shell_that_keeps_the_containers_sigterm_is_told",
        "operator/process/outages/test_faults.py::test_a_taint_that_announces_a_node_s_end_has_its_worker_save_and_leave",
    ],
)
def test_a_pod_whose_shell_keeps_sigterm_to_itself_saves_all_the_same(
    make_job: Make, nodes: Nodes, kubectl: Kubectl, tmp_path: Path
) -> None:
    """A shell as the first process passes no signal on: the master hears of the deletion."""
    body = training(tmp_path, replicas=2, minReplicas=1)
    words = container(body)["command"]
    # Ignored signals stay so in what the shell starts: no process of the pod hears SIGTERM.
    container(body)["command"] = ["sh", "-c", "trap '' TERM; \"$@\"; echo over", "sh", *words]
    job = make_job("deaf")
    job.create(body)
    job.until_training(2)
    kubectl.run("delete", "pod", "deaf-worker-1-0", "--wait=false")
    job.until("its successor", lambda: "deaf-worker-1-1" in job.live())
    job.until_training(2)
    said = kubectl.run("logs", "deaf-worker-0-0")
    assert "rank 0 saves and stops after step" in said
    assert not job.used().get("failures")


def _restarts(job: Job, name: str) -> int:
    found = [pod for pod in job.pods() if pod["metadata"]["name"] == name]
    return int(found[0]["status"]["containerStatuses"][0]["restartCount"]) if found else -1


def test_what_keeps_pods_away_is_told_and_waited_for(
    make_job: Make, nodes: Nodes, kubectl: Kubectl
) -> None:
    """No image, no room, no quota, a policy: the words in the status; then the job goes on."""
    big = manifest("sleep", "600", grace_s=1)
    container(big)["resources"] = {"limits": {"nvidia.com/gpu": 9}}
    no_image = manifest("sleep", "600", grace_s=1)
    container(no_image)["image"] = "gone:1"
    nodes.tell("refuse-image", images=["gone:1"])
    jobs = {
        "big": big,
        "image": no_image,
        "quota": manifest("sleep", "600", grace_s=1, replicas=12),
    }
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "8"}},
    }
    kubectl.run("create", "-f", "-", stdin=quota)
    told = {
        "big": ("Unschedulable", "Insufficient nvidia.com/gpu"),
        "image": ("ImagePullFailed", "gone:1"),
        "quota": ("QuotaExceeded", "exceeded quota: few"),
    }
    made = {name: make_job(name) for name in jobs}
    for name, (reason, words) in told.items():
        job = made[name]
        job.create(jobs[name])
        _until_reason(job, reason)
        assert words in job.condition("QuorumReady")["message"]
        assert job.status["phase"] == "Pending"
    nodes.tell("refuse-image", images=[])
    made["image"].until("its pod", lambda: made["image"].live() == ["image-worker-0-0"])
    kubectl.run("patch", "resourcequota", "few", "-p", '{"spec": {"hard": {"pods": "40"}}}')
    made["quota"].until("all pods", lambda: len(made["quota"].pods()) == 12)
    names = [pod["metadata"]["name"] for pod in made["quota"].pods()]
    assert sorted(names) == sorted(f"quota-worker-{rank}-0" for rank in range(12))


def _until_reason(job: Job, reason: str) -> None:
    job.until(reason, lambda: job.condition("QuorumReady").get("reason") == reason)


def test_a_job_outlives_its_certificates(make_job: Make, kubectl: Kubectl, tmp_path: Path) -> None:
    """They are renewed in the running pods: after their end a new master still is joined."""
    job = make_job("renews")
    job.create(training(tmp_path, replicas=1))
    job.until_training(1)
    before = _certificate(kubectl)
    round_ = job.world["round"]
    job.until("a renewal", lambda: _certificate(kubectl) != before)
    born = time.monotonic()
    job.until("the old one's end", lambda: time.monotonic() > born + 25)
    kubectl.run("delete", "pod", "-l", "holdfast.dev/role=master")
    epoch = job.world["epoch"]
    job.until("the next master", lambda: job.world["epoch"] > epoch)
    job.until_steps()
    assert job.world["round"] == round_


def _certificate(kubectl: Kubectl) -> str:
    found: str = kubectl.json("get", "secret", "renews-master-tls")["data"]["cert.pem"]
    return found
