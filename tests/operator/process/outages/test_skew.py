"""Operator and master one minor release apart, either of them ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.jobs import Job, Make, training
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_NEXT = str(Path(__file__).resolve().parents[3] / "support" / "next_release")
_DEPLOYMENT = "deploy/holdfast-operator"


_NEWS = "/tmp/news"  # noqa: S108 - a pod's own
"""In the pod: what it has said that is new."""
_IN_NEW_TERMS = {"PYTHONPATH": _NEXT, "SAYS_NEW": _NEWS}


def _news(kubectl: Kubectl, pod: str) -> set[str]:
    return set(kubectl.run("exec", pod, "--", "cat", _NEWS).split())


def _up_and_down(job: Job) -> None:
    """Scale a job up and down. It takes spec and pods one way, decisions and status the other."""
    job.until_training(1)
    job.patch(replicas=2)
    job.until_training(2)
    job.patch(replicas=1)
    job.until_training(1)
    job.until("one pod", lambda: len(job.pods()) == 1)
    assert "WorldTraining" in job.events()


@pytest.mark.extended(
    "a newer operator and an older master meet in the other test",
    held_by=[
        "operator/unit/shell/test_master_link.py::test_what_only_a_newer_master_says_is_passed_over",
        "operator/process/outages/test_skew.py::test_an_operator_of_the_next_release_goes_on_with_the_jobs_that_run",
    ],
)
def test_a_master_of_the_next_release_serves_its_job(
    make_job: Make, kubectl: Kubectl, tmp_path: Path
) -> None:
    """The operator passes over news that it does not know. All else goes on."""
    job = make_job("ahead")
    body = training(tmp_path, replicas=1, maxReplicas=2)
    variables = [{"name": name, "value": text} for name, text in _IN_NEW_TERMS.items()]
    command = ["holdfast-master", "--in-pod"]
    master = {"name": "master", "image": "i", "command": command, "env": variables}
    body["spec"]["master"] = {"template": {"spec": {"containers": [master]}}}
    job.create(body)
    _up_and_down(job)
    assert _news(kubectl, "ahead-master-0-0") == {"field", "message", "phase"}


def test_an_operator_of_the_next_release_goes_on_with_the_jobs_that_run(
    make_job: Make, release: Release, tmp_path: Path
) -> None:
    """Their masters stay what they are: the upgrade of the operator stops no job."""
    job = make_job("behind")
    job.create(training(tmp_path, replicas=1, maxReplicas=2))
    job.until_training(1)
    world = job.world
    given = [f"{name}={text}" for name, text in _IN_NEW_TERMS.items()]
    release.kubectl.run("set", "env", _DEPLOYMENT, *given)
    try:
        release.until_rolled_out()
        job.until_steps()
        assert (job.world["round"], job.world["epoch"]) == (world["round"], world["epoch"])
        _up_and_down(job)
        assert _news(release.kubectl, _DEPLOYMENT) == {"field"}
    finally:
        release.kubectl.run("set", "env", _DEPLOYMENT, "PYTHONPATH-", "SAYS_NEW-")
        release.until_rolled_out()
