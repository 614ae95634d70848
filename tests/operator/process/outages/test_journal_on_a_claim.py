"""A journal on a PersistentVolumeClaim: what the master knew outlives its pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.claims import make_claim, remove_claim
from cluster.commands import Commands
from cluster.jobs import Job, Make, training
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_CLAIM = "journal"


def _begun(kubectl: Kubectl, job: Job) -> int:
    """Count the starts of the ranks in the job's live pods."""
    logs = [kubectl.run("logs", name) for name in job.live()]
    return sum(log.count("begins after step") for log in logs)


def test_a_master_whose_pod_is_deleted_is_followed_by_one_that_knows_what_it_knew(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Charges, incidents and events of the epoch before; nobody begins anew. So after a pause."""
    make_claim(kubectl, _CLAIM, tmp_path / "journal", "n2")
    job = make_job("keeps")
    on_claim = {"mode": "PersistentVolumeClaim", "claimName": _CLAIM}
    body = training(tmp_path, "--exit=3:1:5", replicas=2, master__journal=on_claim)
    job.create(body)
    job.until("a charge", lambda: job.used().get("failures") == 1)
    job.until_training(2)
    first, used, begun, uids = job.status, job.used(), _begun(kubectl, job), job.uids()
    holdfast = Commands(kubectl.kubeconfig, tmp_path, kubectl.namespace)
    incident = _incidents(holdfast)[0]
    (master,) = job.live("master")

    kubectl.run("delete", "pod", master)
    job.until("the next master", lambda: job.world["epoch"] > first["world"]["epoch"])
    job.until("its word", lambda: job.holds("MasterReady"))
    job.until_steps()
    assert (job.status["masterPods"], job.world["round"]) == (2, first["world"]["round"])
    assert job.used() == used
    assert (job.uids(), _begun(kubectl, job)) == (uids, begun)
    assert {pod["spec"]["nodeName"] for pod in job.pods("master")} == {"n2"}
    assert "MasterRestored" in job.events()
    assert "WorldAdopted" not in job.events()
    assert incident in _incidents(holdfast)

    _pause(job)
    assert job.world["round"] > first["world"]["round"]
    assert job.used()["failures"] == 1
    assert incident in _incidents(holdfast)
    job.delete()
    remove_claim(kubectl, _CLAIM)


def _pause(job: Job) -> None:
    """Suspend and resume it: for a while neither master nor worker runs."""
    job.patch(suspend=True)
    job.until("no pods", lambda: not job.pods() + job.pods("master"))
    job.patch(suspend=False)
    job.until_training(2)


def _incidents(holdfast: Commands) -> list[tuple[str, str]]:
    """Id and text of every incident that the master tells of."""
    found = holdfast.json("goodput", "keeps")["incidents"]
    return [(one["id"], one["text"]) for one in found]
