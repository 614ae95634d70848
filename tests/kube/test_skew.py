"""Operator and master one minor release apart, either of them ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.jobs import Job, training
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    needs_pods,
]
_NEXT = str(Path(__file__).resolve().parents[1] / "support" / "next_release")
_DEPLOYMENT = "deploy/holdfast-operator"
Make = Callable[[str], Job]


def _in_new_terms(said: Path) -> dict[str, str]:
    said.touch()
    said.chmod(0o666)  # the operator's pod is another user's
    return {"PYTHONPATH": _NEXT, "SAYS_NEW": str(said)}


@pytest.fixture
def news(tmp_path: Path) -> Path:
    """A file in a folder that every pod can reach."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path / "news"


def _up_and_down(job: Job) -> None:
    """What needs both sides: the spec and pods up, decisions and the status down."""
    job.until_training(1)
    job.patch(replicas=2)
    job.until_training(2)
    job.patch(replicas=1)
    job.until_training(1)
    job.until("one pod", lambda: len(job.pods()) == 1)
    assert "WorldTraining" in job.events()


def test_a_master_of_the_next_release_serves_its_job(
    make_job: Make, tmp_path: Path, news: Path
) -> None:
    """What this operator does not know is passed over; all else goes on."""
    job = make_job("ahead")
    body = training(tmp_path, replicas=1, maxReplicas=2)
    variables = [{"name": name, "value": text} for name, text in _in_new_terms(news).items()]
    command = ["holdfast-master", "--in-pod"]
    master = {"name": "master", "image": "i", "command": command, "env": variables}
    body["spec"]["master"] = {"template": {"spec": {"containers": [master]}}}
    job.create(body)
    _up_and_down(job)
    assert set(news.read_text().split()) == {"field", "message", "phase"}
    job.delete()


def test_an_operator_of_the_next_release_goes_on_with_the_jobs_that_run(
    make_job: Make, release: Release, tmp_path: Path, news: Path
) -> None:
    """Their masters stay what they are: the upgrade of the operator stops no job."""
    job = make_job("behind")
    job.create(training(tmp_path, replicas=1, maxReplicas=2))
    job.until_training(1)
    world = job.world
    given = [f"{name}={text}" for name, text in _in_new_terms(news).items()]
    release.kubectl.run("set", "env", _DEPLOYMENT, *given)
    try:
        release.kubectl.run("rollout", "status", _DEPLOYMENT, "--timeout=60s")
        job.until_steps()
        assert (job.world["round"], job.world["epoch"]) == (world["round"], world["epoch"])
        _up_and_down(job)
        assert news.read_text().split() == ["field"]
    finally:
        release.kubectl.run("set", "env", _DEPLOYMENT, "PYTHONPATH-", "SAYS_NEW-")
        release.kubectl.run("rollout", "status", _DEPLOYMENT, "--timeout=60s")
    job.delete()
