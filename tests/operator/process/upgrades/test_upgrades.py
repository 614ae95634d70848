"""Another chart under jobs that run: upgrade, rollback, uninstall, and a CRD that stays behind."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.control_plane import ControlPlane
from cluster.crd import install_crd
from cluster.jobs import Job, Make, container, looping
from cluster.kubectl import Kubectl
from cluster.nodes import Nodes
from cluster.release import CHART, Release
from cluster.rights import needs_pods
from house.repository import ROOT

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
LANDED: Final = Path(__file__).with_name("landed_chart.tgz")
"""The chart as it was on the main branch at `_REVISION`: `helm package` of its folder. With a
release it becomes that release's. Without `landed_code` it runs this checkout's code, which has to
read it."""
_REVISION: Final = "7458d186"
_PARTS: Final = ("operator", "master", "proto", "worker_agent", "cli")
_SAYS: Final = {
    "operator": "holdfast_operator",
    "master": "holdfast_master",
    "worker_agent": "holdfast_agent",
}
"""Packages of the landed code that say in their pod's log that they run, by their part."""
_LANDED_WORDS: Final = "this is landed "
_OPERATOR: Final = "deploy/holdfast-operator"
_FIRST_VARIABLE: Final = "        - name: HOLDFAST_OPERATOR_NAMESPACE\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without the CRD, which comes with the release here."""
    made = ControlPlane(tmp_path_factory.mktemp("upgrades"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def landed_code() -> Iterator[str]:
    """The PYTHONPATH by which a pod runs the code that landed with the chart.

    Not below /tmp: the operator's pod has a volume there. `manifests` has what a link leads to.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="landed.", dir=ROOT / "build") as name:
        Path(name).chmod(0o755)  # the operator is another user
        yield _unpacked(Path(name))


def _unpacked(folder: Path) -> str:
    command = ["git", "archive", f"--output={folder}/code.tar", _REVISION, *_PARTS, "manifests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the history here lacks {_REVISION}: {done.stderr.strip()}")
    with tarfile.open(folder / "code.tar") as packed:
        packed.extractall(folder, filter="data")
    for place, name in _SAYS.items():
        with (folder / place / name / "__init__.py").open("a") as file:
            file.write(f"\nprint({_LANDED_WORDS + name!r}, flush=True)\n")
    return os.pathsep.join(str(folder / one) for one in _PARTS)


def _chart_with(code: str, folder: Path) -> Path:
    """Return the landed chart, whose operator runs `code`: it has no value for variables yet."""
    with tarfile.open(LANDED) as packed:
        packed.extractall(folder, filter="data")
    file = folder / "holdfast" / "templates" / "deployment.yaml"
    head, tail = file.read_text().split(_FIRST_VARIABLE)
    variable = f"        - {{name: PYTHONPATH, value: '{code}'}}\n"
    file.write_text(head + variable + _FIRST_VARIABLE + tail)
    return folder / "holdfast"


@pytest.fixture
def release(
    plane: ControlPlane, nodes: Nodes, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Release]:
    """A release of the landed chart, with its CRD; with its code where a test asks for that."""
    chart = LANDED
    if "landed_code" in request.fixturenames:
        chart = _chart_with(request.getfixturevalue("landed_code"), tmp_path / "chart")
    made = Release(plane.kubeconfig, chart=chart)
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


def _runs_landed(kubectl: Kubectl, pod: str, name: str) -> bool:
    return _LANDED_WORDS + name in kubectl.run("logs", pod)


def test_a_job_of_landed_code_trains_on_under_this_operator(
    make_job: Make, release: Release, kubectl: Kubectl, landed_code: str, tmp_path: Path
) -> None:
    """Operator, master and agent of then; this operator takes over, and gives it back."""
    env = [{"name": "PYTHONPATH", "value": landed_code}]
    body = looping(tmp_path, "--steps=1000000", replicas=1)
    container(body)["env"] += env
    command = ["holdfast-master", "--in-pod"]
    master = {"name": "master", "image": "i", "command": command, "env": env}
    body["spec"]["master"] = {"template": {"spec": {"containers": [master]}}}
    job = make_job("landed")
    job.create(body)
    job.until_training(1)
    before = _seen([job])
    assert _runs_landed(kubectl, f"{job.name}-master-0-0", "holdfast_master")
    assert _runs_landed(kubectl, f"{job.name}-worker-0-0", "holdfast_agent")
    assert _runs_landed(release.kubectl, _OPERATOR, "holdfast_operator")
    release.chart = CHART
    release.upgrade("crds.enabled=true")
    operator = (release.kubectl, _OPERATOR, "holdfast_operator")
    job.until("the operator of then is gone", lambda: not _runs_landed(*operator))
    _all_train([job])
    assert _seen([job]) == before, "upgrade"
    release.rollback(1)
    _all_train([job])
    assert _seen([job]) == before, "rollback"


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
