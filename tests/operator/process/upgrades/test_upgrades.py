"""Another chart under jobs that run: upgrade, rollback, uninstall, and a CRD that stays behind."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.control_plane import ControlPlane
from cluster.crd import install_crd
from cluster.jobs import Job, Make, looping
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import CHART, Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
LANDED: Final = Path(__file__).with_name("landed_chart.tgz")
"""The chart as it was on the main branch at 7458d186: `helm package` of its folder. With a release
it becomes that release's. What it installs runs this checkout's code, which has to read it: the
chart's README says so."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without the CRD, which comes with the release here."""
    made = ControlPlane(tmp_path_factory.mktemp("upgrades"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def release(plane: ControlPlane, nodes: Nodes) -> Iterator[Release]:
    """A release of the landed chart, with its CRD."""
    made = Release(plane.kubeconfig, chart=LANDED)
    made.install("crds.enabled=true")
    yield made
    made.clear()


def _seen(jobs: list[Job]) -> dict[str, Any]:
    """What changes when a rank, an agent or a master begins anew."""
    found: dict[str, Any] = {}
    for job in jobs:
        pods = [*job.pods(), *job.pods("master")]
        found[job.name] = {
            "pods": sorted(pod["metadata"]["uid"] for pod in pods),
            "restarts": [
                one["restartCount"] for pod in pods for one in pod["status"]["containerStatuses"]
            ],
            "world": {name: job.world[name] for name in ("round", "epoch")},
            "counted": job.status.get("restarts"),
        }
    return found


def _all_train(jobs: list[Job], since: dict[str, int] | None = None) -> None:
    """Wait until each has made steps from now on, or from those that it had."""
    begun = since or {job.name: job.world["step"] for job in jobs}
    for job in jobs:
        job.until("steps", lambda job=job: job.world["step"] > begun[job.name] + 5)  # type: ignore[misc]


def test_jobs_train_on_under_another_chart(
    make_job: Make, release: Release, tmp_path: Path
) -> None:
    """From the landed chart to this one, back, again, away and anew: no process begins again."""
    _change_charts([make_job(f"job-{number}") for number in range(2)], release, tmp_path)


@pytest.mark.timeout(1200)
@pytest.mark.extended(
    "more jobs of the same kind",
    held_by=["operator/process/upgrades/test_upgrades.py::test_jobs_train_on_under_another_chart"],
)
def test_twenty_jobs_train_on_under_another_chart(
    make_job: Make, release: Release, tmp_path: Path
) -> None:
    """The same of as many as one machine takes."""
    _change_charts([make_job(f"job-{number}") for number in range(20)], release, tmp_path)


def _change_charts(jobs: list[Job], release: Release, folder: Path) -> None:
    for job in jobs:
        job.create(looping(folder, "--steps=1000000", replicas=1))
    for job in jobs:
        job.until_training(1)
    before = _seen(jobs)
    release.chart = CHART
    release.upgrade("crds.enabled=true")
    _all_train(jobs)
    assert _seen(jobs) == before, "upgrade"
    release.rollback(1)
    _all_train(jobs)
    assert _seen(jobs) == before, "rollback"
    release.upgrade("crds.enabled=true")
    _all_train(jobs)
    assert _seen(jobs) == before, "again"
    release.uninstall()
    alone = {job.name: job.world["step"] for job in jobs}
    release.install("crds.enabled=true")
    _all_train(jobs, alone)
    assert _seen(jobs) == before, "installed anew"


def _older_crd(*without: str) -> dict[str, Any]:
    """Return the landed CRD without some fields of the status."""
    with tarfile.open(LANDED) as packed:
        file = packed.extractfile("holdfast/templates/crd.yaml")
        assert file is not None
        lines = file.read().decode().splitlines()
    crd: dict[str, Any] = yaml.safe_load("\n".join(one for one in lines if "{{" not in one))
    crd["metadata"].pop("annotations", None)
    (version,) = crd["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    for path in without:
        place = status
        *groups, last = path.split(".")
        for group in groups:
            place = place["properties"][group]
        del place["properties"][last]
    return crd


def test_an_operator_that_is_newer_than_the_crd_names_it_once_and_works(
    plane: ControlPlane, make_job: Make, release: Release, kubectl: Kubectl, tmp_path: Path
) -> None:
    """What the CRD lacks is left out of the status; all else is there, also for a successor."""
    release.chart = CHART
    release.upgrade("crds.enabled=false")
    kubectl.run("replace", "-f", "-", stdin=_older_crd("budgets", "world.step"))
    job = make_job("ahead")
    job.create(looping(tmp_path, "--steps=400", replicas=1, cleanup__pods="None"))
    job.until("a world", lambda: job.status.get("phase") == "Running")
    job.until("its master's word", lambda: job.holds("MasterReady"))
    missing = [one for one in release.operator_log().splitlines() if "is older than this" in one]
    assert len(missing) <= 2, missing
    for field in ("status.budgets", "status.world.step"):
        assert sum(field in one for one in missing) == 1, missing
    release.restart()
    assert job.ended() == ("Complete", "Succeeded"), job.seen()
    assert job.status["masterPods"] == 1
    assert not {"budgets"} & job.status.keys()
    assert "step" not in job.world
    job.delete()
    install_crd(plane)
