"""Jobs under the real Kueue: queued, admitted in part, shrunk for a better one, grown again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Make, container, training
from cluster.kubectl import Kubectl
from cluster.queue import kueue, queue
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_QUEUE = "kueue.x-k8s.io/queue-name"


@pytest.fixture(scope="module", autouse=True)
def running_kueue(
    plane: ControlPlane, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Kueue beside the cluster; an operator that has looked for it after it came."""
    with kueue(plane, tmp_path_factory.mktemp("kueue")):
        release.restart()
        yield


@pytest.fixture(autouse=True)
def local_queue(kubectl: Kubectl) -> None:
    """A queue with 4 CPUs."""
    queue(kubectl, 4)


def _queued(folder: Path, priority: str = "", **spec: Any) -> dict[str, Any]:
    """Return a job whose workers ask for a CPU each."""
    folder.mkdir(exist_ok=True)
    body = training(folder, **spec)
    container(body)["resources"] = {"requests": {"cpu": "1"}}
    body["metadata"]["labels"] = {_QUEUE: "team"}
    master = {"name": "master", "image": "i", "command": ["holdfast-master", "--in-pod"]}
    body["spec"]["master"] = {"template": {"spec": {"containers": [master]}}}
    if priority:
        body["spec"]["scheduling"] = {"priorityClassName": priority}
    return body


def _reserved(kubectl: Kubectl) -> int:
    """Return the CPUs that are reserved in the queue."""
    found = kubectl.json("get", "clusterqueue", "team")["status"]["flavorsReservation"]
    return sum(int(one["total"]) for flavor in found for one in flavor["resources"])


def test_a_better_job_shrinks_the_one_that_trains_and_it_grows_again(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """The victim loses no round but a change of size; no pod runs without a reservation."""
    kubectl.run("create", "priorityclass", "better", "--value=1000")
    low, high = make_job("low"), make_job("high")
    low.create(_queued(tmp_path / "low", replicas=4, minReplicas=1))
    low.until_training(4)
    assert low.condition("Admitted")["reason"] == "AllAdmitted"
    step = low.world["step"]
    began = time.monotonic()
    high.create(_queued(tmp_path / "high", "better", replicas=2, minReplicas=2))
    high.until("its pods run", lambda: len(high.live()) == 2)
    print(f"a better job's pods ran after {time.monotonic() - began:.1f} s")
    assert _reserved(kubectl) <= 4
    low.until_training(2)
    assert low.world["step"] >= step
    assert low.condition("Admitted")["reason"] == "PartlyAdmitted"
    high.until_training(2)
    high.delete()
    low.until_training(4)
    assert low.used() in ({}, {"rescales": 0})


def test_a_job_waits_for_its_queue_and_begins_with_what_there_is(
    make_job: Make, tmp_path: Path
) -> None:
    """No pod before the core is admitted; then as many workers as fit."""
    first, second = make_job("first"), make_job("second")
    first.create(_queued(tmp_path / "first", replicas=3, minReplicas=3))
    first.until_training(3)
    second.create(_queued(tmp_path / "second", replicas=4, minReplicas=2))
    second.until("its word", lambda: second.condition("Suspended").get("reason") == "Queued")
    assert second.pods() == []
    assert second.pods("master") == []
    first.delete()
    second.until_training(4)


def test_an_owner_s_suspension_gives_the_quota_back(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """A job that is suspended by its owner holds nothing; resumed it queues again."""
    job = make_job("paused")
    job.create(_queued(tmp_path / "paused", replicas=2, minReplicas=2))
    job.until_training(2)
    job.patch(suspend=True)
    job.until("no quota", lambda: _reserved(kubectl) == 0)
    job.patch(suspend=False)
    job.until_training(2)
