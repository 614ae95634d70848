"""A real Prometheus scrapes real jobs: each alert fires in its situation, and the runbook helps.

The runbook's commands are read from the page, run while the alert fires, and compared with what
the page says that they print.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.commands import Commands
from cluster.control_plane import ControlPlane
from cluster.jobs import SHARED, Job, Make, container, manifest, share
from cluster.kubectl import Kubectl
from cluster.prometheus import NOT_BUILT, Prometheus, panels, prometheus_folder
from cluster.release import CHART, NAMESPACE, Release
from cluster.rights import needs_pods
from cluster.runbook import Point, points

_PROGRAMS: Final = prometheus_folder()
pytestmark = [
    pytest.mark.kube,
    pytest.mark.timeout(300),
    needs_pods,
    pytest.mark.skipif(_PROGRAMS is None, reason=NOT_BUILT),
]
_BOOK: Final = points()
_TRIES: Final = 100
_SCRIPT: Final = '''
    """Trains, and does what files in its folder say: slow, hang, skip (saves nothing)."""
    import pathlib, time
    import torch, torch.distributed as dist
    import holdfast

    folder = pathlib.Path("/work-files")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = holdfast.init()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(64, 64)
    saver = holdfast.Checkpointer(str(folder / "saved"), model=model)
    for step in range(saver.load() + 1, 100000):
        time.sleep(0.05)
        if rank == 1 and (folder / "slow").exists():
            time.sleep(0.5)
        while rank == 1 and (folder / "hang").exists():
            time.sleep(0.1)
        loss = model(torch.rand(8, 64)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if (folder / "skip").exists():
            answer = job.step(step, samples=8, loss=loss.item())
        else:
            answer = saver.step(step, samples=8, loss=loss.item())
        if answer is holdfast.SAVE_AND_STOP:
            break
    saver.close()
'''


class OnCall:
    """Runs the runbook's commands for one alert, as somebody with a kubeconfig."""

    def __init__(self, plane: ControlPlane, kubectl: Kubectl, home: Path) -> None:
        self._kubectl = kubectl
        self._holdfast = Commands(plane.kubeconfig, home, kubectl.namespace)
        self.tried: set[tuple[str, Point]] = set()

    def kill_a_rank(self, job: Job) -> None:
        """Kill a process that trains, by its number in its pod."""
        (node, *_) = self._holdfast.json("nodes", job.name)
        number = str(node["ranks"][0]["pid"])
        self._kubectl.run("exec", job.live()[0], "--", "kill", "-9", number)

    def follow(self, alert: str, *, only: str = "", **values: str) -> None:
        """Run the commands of an alert's section that begin with `only`."""
        values |= {"NAMESPACE": self._kubectl.namespace, "CHART": str(CHART)}
        for point in _BOOK[alert]:
            if point.command.startswith(only) and (alert, point) not in self.tried:
                self._run(point.filled(**values))
                self.tried.add((alert, point))

    def _run(self, point: Point) -> None:
        tool, *words = point.words
        if tool == "holdfast":
            printed = self._holdfast.run(*words)
        elif tool == "helm":
            printed = self._kubectl.helm(*words)
        else:
            printed = self._kubectl.run(*words)
        missing = [word for word in point.printed if word not in printed]
        assert not missing, f"{point.command} does not print {missing}:\n{printed}"


def _points() -> Iterator[tuple[str, Point]]:
    return ((name, one) for name, section in _BOOK.items() for one in section)


@pytest.fixture
def prometheus(kubectl: Kubectl, release: Release, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus in the test's namespace."""
    assert _PROGRAMS is not None
    (tmp_path / "prometheus").mkdir()
    started = Prometheus(kubectl, tmp_path / "prometheus", _PROGRAMS)
    yield started
    started.close()


def _job(folder: Path, **spec: Any) -> dict[str, Any]:
    (folder / "train.py").write_text(textwrap.dedent(_SCRIPT))
    words = ("holdfast-run", "--nproc-per-node=1", f"{SHARED}/train.py")
    body = share(manifest(*words, replicas=2, minReplicas=1, **spec), folder)
    body["spec"]["checkpoint"] = {
        "path": f"{SHARED}/saved",
        "memory": {"interval": 5},
        "storage": {"interval": 10},
    }
    container(body)["env"] += [{"name": "OMP_NUM_THREADS", "value": "1"}]
    return body


def test_each_alert_of_a_job_fires_and_the_runbook_helps(
    plane: ControlPlane, make_job: Make, prometheus: Prometheus, kubectl: Kubectl, tmp_path: Path
) -> None:
    """One job meets a kill, slow ranks, a drained node, a hang, no saves, failed saves, its end."""
    job = make_job("seen")
    job.create(
        _job(
            tmp_path,
            failurePolicy__budgets={"failures": {"limit": 1}},
            health__hang={"mode": "Report", "minSeconds": 5, "stepTimeFactor": 5},
            health__straggler={"mode": "Report", "windowSteps": 10, "votes": 1, "votesOutOf": 1},
        )
    )
    person = OnCall(plane, kubectl, tmp_path)
    job.until_training(2)
    _killed(job, prometheus, person)
    _slow(job, prometheus, person, tmp_path)
    _hangs(job, prometheus, person, tmp_path)
    _saves_nothing(prometheus, tmp_path)
    _cannot_save(prometheus, person, tmp_path)
    _fails(job, prometheus, person)
    assert person.tried == {(name, one) for name, one in _points() if "Operator" not in name}


def _killed(job: Job, prometheus: Prometheus, person: OnCall) -> None:
    """One failure of a budget of one; every panel has data then."""
    assert prometheus.until('holdfast_job_step{job="seen"}')[0]["metric"]["namespace"]
    job.until("a checkpoint", lambda: job.status.get("lastCheckpoint", {}).get("step", 0) > 0)
    person.kill_a_rank(job)
    job.until("a charge", lambda: job.used() == {"failures": 1})
    prometheus.until_fires("HoldfastBudgetNearlySpent", job="seen", budget="failures")
    prometheus.until('holdfast_job_recovery_seconds_bucket{phase="restored"} > 0')
    prometheus.until('increase(holdfast_job_restores_total{tier="memory"}[10m]) > 0')
    person.follow("HoldfastBudgetNearlySpent", JOB="seen")
    prometheus.until_ends("HoldfastBudgetNearlySpent", job="seen")
    for title, query in panels():
        assert prometheus.until(query), title


def _slow(job: Job, prometheus: Prometheus, person: OnCall, folder: Path) -> None:
    """A slow rank's node is drained; the world is smaller until a person asks for it again."""
    (folder / "slow").touch()
    prometheus.until_fires("HoldfastJobSlowRanks", job="seen")
    person.follow("HoldfastJobSlowRanks", JOB="seen", NODE="1")
    (folder / "slow").unlink()
    prometheus.until_ends("HoldfastJobSlowRanks", job="seen")
    prometheus.until_fires("HoldfastJobIncomplete", job="seen")
    person.follow("HoldfastJobIncomplete", JOB="seen", REPLICAS="2")
    prometheus.until_ends("HoldfastJobIncomplete", job="seen")
    job.until_training(2)  # before its first step nothing counts as a hang
    job.until_steps(10)


def _hangs(job: Job, prometheus: Prometheus, person: OnCall, folder: Path) -> None:
    """All ranks wait for one, and nothing is productive; then a restart ends the hang."""
    (folder / "hang").touch()
    prometheus.until_fires("HoldfastJobHangs", job="seen")
    # The evidence of all ranks comes between the alert and this.
    job.until("what hangs", lambda: "HangFound" in job.events())
    person.follow("HoldfastJobHangs", only="holdfast health", JOB="seen")
    person.follow("HoldfastJobHangs", only="holdfast stacks", JOB="seen")
    person.follow("HoldfastJobHangs", only="holdfast events", JOB="seen")
    prometheus.until_fires("HoldfastGoodputLow", job="seen")
    person.follow("HoldfastGoodputLow", JOB="seen")
    (folder / "hang").unlink()
    person.follow("HoldfastJobHangs", JOB="seen")
    prometheus.until_ends("HoldfastJobHangs", job="seen")


def _saves_nothing(prometheus: Prometheus, folder: Path) -> None:
    """The script trains, and saves nothing for three intervals."""
    (folder / "skip").touch()
    prometheus.until_fires("HoldfastCheckpointStale", job="seen", tier="storage")
    (folder / "skip").unlink()
    prometheus.until_ends("HoldfastCheckpointStale", job="seen")


def _cannot_save(prometheus: Prometheus, person: OnCall, folder: Path) -> None:
    """The folder of checkpoints is no folder; then it is mended, and a save is asked for."""
    saved, moved = folder / "saved", folder / "moved"
    saved.rename(moved)
    _in_its_place(saved, lambda: saved.write_text("no folder"))
    prometheus.until_fires("HoldfastCheckpointFails", job="seen", tier="storage")
    prometheus.until_fires("HoldfastCheckpointStale", job="seen", tier="storage")
    person.follow("HoldfastCheckpointStale", JOB="seen")
    person.follow("HoldfastCheckpointFails", only="holdfast events", JOB="seen")
    saved.unlink()
    _in_its_place(saved, lambda: moved.rename(saved))
    person.follow("HoldfastCheckpointFails", JOB="seen")
    prometheus.until_ends("HoldfastCheckpointStale", job="seen")


def _in_its_place(saved: Path, put: Callable[[], object]) -> None:
    """Put something where the job may make its folder anew at any moment."""
    for _ in range(_TRIES):
        try:
            put()
        except OSError:
            shutil.rmtree(saved, ignore_errors=True)
        else:
            return
    raise AssertionError(f"{saved} was there each time")


def _fails(job: Job, prometheus: Prometheus, person: OnCall) -> None:
    """The budget is taken away again, and a rank dies: the alert outlives the job's master."""
    job.patch(failurePolicy={"budgets": {"failures": {"limit": 1}}})
    prometheus.until('holdfast_job_budget_limit{budget="failures"} == 1')
    person.kill_a_rank(job)
    job.until_over()
    job.until("no master", lambda: not job.pods("master"))
    fired = prometheus.until_fires("HoldfastJobFailed", job="seen")
    assert (fired["reason"], fired["namespace"]) == (
        "FailureBudgetExhausted",
        job.kubectl.namespace,
    )
    person.follow("HoldfastJobFailed", JOB="seen")
    prometheus.until_ends("HoldfastJobFailed", job="seen")


def test_each_alert_of_the_operator_fires_and_the_runbook_helps(
    plane: ControlPlane,
    make_job: Make,
    release: Release,
    prometheus: Prometheus,
    tmp_path: Path,
) -> None:
    """Without its rights to jobs it fails at a new one; without that to the Lease it ends."""
    admin = release.kubectl
    person = OnCall(plane, admin, tmp_path)
    prometheus.until("holdfast_operator_leader == 1")
    job = make_job("new")
    with plane.rights_taken():
        admin.run("delete", "clusterrolebinding", "holdfast-operator-jobs")
        job.create(_job(tmp_path))
        fired = prometheus.until_fires("HoldfastOperatorFails", namespace=NAMESPACE)
        assert fired["outcome"] == "refused"
        person.follow("HoldfastOperatorFails", only="kubectl -n NAMESPACE logs")
        admin.run("delete", "rolebinding", "holdfast-operator")
        prometheus.until_fires("HoldfastOperatorNotLeading", namespace=NAMESPACE)
        person.follow("HoldfastOperatorNotLeading")
    prometheus.until_ends("HoldfastOperatorNotLeading", namespace=NAMESPACE)
    job.until_training(2)
    person.follow("HoldfastOperatorFails")
    release.until_rolled_out()
    assert person.tried == {(name, one) for name, one in _points() if "Operator" in name}
