"""Jobs on real nodes at the limits of a container: memory, rights, shared memory, sidecars."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from cluster.claims import remove_claim, share_folder
from cluster.jobs import Make, container
from cluster.kubectl import Kubectl
from cluster.real.images import lacking, training_image
from cluster.real.jobs import later_steps, next_step, real_job, steps
from cluster.real.node import RealNodes

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the container's own
_STANDARD = "pod-security.kubernetes.io/enforce=restricted"


def test_a_rank_that_eats_its_containers_memory_is_named(make_job: Make, folder: Path) -> None:
    """The kernel ends it; the container stays, and the next round begins from memory."""
    job = make_job("eats")
    body = real_job(folder, memory="1Gi")
    container(body)["env"].append({"name": "EAT_AT", "value": "100"})
    job.create(body)
    job.until("the end of a rank", (folder / "eaten").exists)
    since = (folder / "eaten").stat().st_mtime
    assert next_step(job, folder, since).begun > 0
    job.until("its cause", lambda: "out of memory" in job.seen())
    uids = {pod["metadata"]["name"][-1] for pod in job.pods()}
    assert uids == {"0"}, "a pod was replaced for what ended a rank"
    (folder / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"


def test_an_arena_counts_against_the_limit_once(
    make_job: Make, nodes: RealNodes, folder: Path
) -> None:
    """A container that starts again has room beside the checkpoints that its predecessor left."""
    job = make_job("near")
    body = real_job(folder, memory="1600Mi", checkpoint__memory__interval=5)
    container(body)["env"].append({"name": "WIDTH", "value": "5000"})  # 100 MB
    job.create(body)
    job.until_training(2)
    for _ in range(2):
        job.until("a checkpoint", lambda: steps(folder)[-1].number > steps(folder)[-1].begun + 12)
        pod = next(one for one in job.pods() if one["metadata"]["name"] in job.live())
        since = steps(folder)[-1].at
        nodes.kill_container(pod)
        assert next_step(job, folder, since, 2).begun > 0
        job.until_training(2)
    assert "out of memory" not in job.seen()
    (folder / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"


def _restricted(kubectl: Kubectl, folder: Path) -> dict[str, Any]:
    """A job without folders of its nodes; with probes, a native sidecar, more shared memory."""
    body = real_job(folder)
    share_folder(kubectl, "torch", sysconfig.get_path("purelib"), "ReadOnlyMany")
    share_folder(kubectl, "steps", str(folder))
    pod, worker = body["spec"]["worker"]["template"]["spec"], container(body)
    for volume in pod["volumes"]:
        if volume.pop("hostPath", None):
            volume["persistentVolumeClaim"] = {"claimName": volume["name"]}
    pod["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}})
    worker["volumeMounts"].append({"name": "shm", "mountPath": _SHARED_MEMORY})
    look = {"exec": {"command": ["test", "-e", "/steps/rank-0"]}, "periodSeconds": 1}
    worker["startupProbe"] = look | {"failureThreshold": 120}
    worker["readinessProbe"] = look
    sidecar: dict[str, Any] = {
        "name": "beside",
        "image": training_image(),
        "restartPolicy": "Always",
    }
    sidecar |= {"command": ["sleep", "100000"], "imagePullPolicy": "Never"}
    pod["initContainers"] = [sidecar | {"securityContext": worker["securityContext"]}]
    pod["terminationGracePeriodSeconds"] = 2
    return body


def test_a_restricted_namespace_takes_a_job_with_probes_and_a_sidecar(
    make_job: Make, kubectl: Kubectl, folder: Path
) -> None:
    """Pod Security admits every pod; kubelet calls the worker started and ready; all of it ends."""
    kubectl.run("label", "namespace", kubectl.namespace, _STANDARD)
    job = make_job("strict")
    job.create(_restricted(kubectl, folder))
    job.until_training(2)
    ready = ("wait", "pod", "-l", "holdfast.dev/role=worker", "--for=condition=Ready")
    kubectl.run(*ready, "--timeout=30s")
    states = [one for pod in job.pods() for one in pod["status"]["initContainerStatuses"]]
    assert [one["started"] for one in states] == [True, True]
    room = kubectl.run("exec", job.live()[0], "-c", "worker", "--", "df", "-m", _SHARED_MEMORY)
    assert room.split()[-5] == "128", room
    (folder / "end").touch()
    assert job.until_over()["phase"] == "Succeeded"
    assert later_steps(folder, steps(folder)[0].at) == [], "it was not one round"
    job.delete()
    for name in ("torch", "steps"):
        remove_claim(kubectl, name)
