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
from cluster.queue import Kueue, QuotaWitness, kueue, queue, reserved
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_QUEUE = "kueue.x-k8s.io/queue-name"
_QUOTA = 4500
"""Thousandths of CPUs."""
_STARTS_SECONDS = 5.0
"""Until the pods of a better job run: what is promised."""


@pytest.fixture(scope="module", autouse=True)
def running_kueue(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """Kueue beside the cluster, from before the operator on."""
    with kueue(plane, tmp_path_factory.mktemp("kueue")) as running:
        yield running


@pytest.fixture(autouse=True)
def quota(kubectl: Kubectl) -> Iterator[QuotaWitness]:
    """A queue with 4 CPUs for workers, and a rest for masters: never more is used or reserved."""
    queue(kubectl, f"{_QUOTA}m")
    witness = QuotaWitness(kubectl)
    yield witness
    witness.stop()
    assert witness.faults(_QUOTA) == []


def _queued(folder: Path, priority: str = "", *flags: str, **spec: Any) -> dict[str, Any]:
    """Return a job whose workers ask for a CPU each."""
    folder.mkdir(exist_ok=True)
    body = training(folder, *flags, **spec)
    container(body)["resources"] = {"requests": {"cpu": "1"}}
    body["metadata"]["labels"] = {_QUEUE: "team"}
    if priority:
        body["spec"]["scheduling"] = {"priorityClassName": priority}
    return body


def _steps(folder: Path) -> list[int]:
    """Return the steps that were made, in order; a lost one stands there twice."""
    return [int(line.split()[0]) for line in (folder / "steps").read_text().splitlines()]


def test_a_better_job_shrinks_the_one_that_trains_and_it_grows_again(
    make_job: Make, kubectl: Kubectl, quota: QuotaWitness, tmp_path: Path
) -> None:
    """The victim loses one step at most, though it saves one of a thousand, and no budget."""
    kubectl.run("create", "priorityclass", "better", "--value=1000")
    low, high = make_job("low"), make_job("high")
    low.create(_queued(tmp_path / "low", "", "--save-every=1000", replicas=4, minReplicas=1))
    low.until_training(4)
    low.until("all are admitted", lambda: low.condition("Admitted")["reason"] == "AllAdmitted")
    began = time.monotonic()
    high.create(_queued(tmp_path / "high", "better", replicas=2, minReplicas=2))
    high.until("its pods run", lambda: len(high.live()) == 2)
    took = time.monotonic() - began
    low.until_training(2)
    assert low.condition("Admitted")["reason"] == "PartlyAdmitted"
    high.until_training(2)
    high.delete()
    low.until_training(4)
    steps = _steps(tmp_path / "low")
    lost = len(steps) - len(set(steps))
    print(f"a better job's pods ran after {took:.1f} s; the victim made {lost} steps again")
    for at, what in quota.story(began):
        print(f"  {at:5.2f} s {what}")
    assert lost <= 2  # one at each change of size
    assert took <= _STARTS_SECONDS
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
    job.until("no quota", lambda: reserved(kubectl) == 0)
    job.patch(suspend=False)
    job.until_training(2)
