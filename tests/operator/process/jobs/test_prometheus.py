"""A real Prometheus scrapes a real job: each panel and each alert has data in its situation."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import SHARED, Job, Make, container, manifest, share
from cluster.kubectl import Kubectl
from cluster.prometheus import Prometheus, alerts, panels
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300), needs_pods]
_ALERTS = alerts()
_SCRIPT = '''
    """Trains, and does what files in its folder say: slow, hang, skip (saves nothing)."""
    import pathlib, time
    import torch, torch.distributed as dist
    import holdfast

    folder = pathlib.Path("/work-files")
    torch.set_num_threads(1)
    job = holdfast.init()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(64, 64)
    saver = holdfast.Checkpointer(str(folder / "saved"), model=model)
    for step in range(saver.restore() + 1, 100000):
        time.sleep(0.05)
        if rank == 1 and (folder / "slow").exists():
            time.sleep(0.2)
        while rank == 1 and (folder / "hang").exists():
            time.sleep(0.1)
        loss = model(torch.rand(8, 64)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if not (folder / "skip").exists():
            saver.save(step)
        if job.step(step, samples=8, loss=loss.item()) is holdfast.SAVE_AND_STOP:
            break
'''


@pytest.fixture
def prometheus(kubectl: Kubectl, release: Release, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus in the test's namespace."""
    (tmp_path / "prometheus").mkdir()
    yield Prometheus(kubectl, tmp_path / "prometheus")
    kubectl.try_run("delete", "pod", "prometheus", "--force", "--grace-period=0")


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


def _one_rank(job: Job) -> int:
    """Return a process of a rank that trains, on this machine."""
    found = [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal() and b"work-files/train.py" in _words(path)
    ]
    assert found, job.seen()
    return max(found)


def _words(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


def test_panels_and_alerts_of_a_job_that_is_killed_hangs_slows_and_cannot_save(
    make_job: Make, prometheus: Prometheus, tmp_path: Path
) -> None:
    """Every panel has a series after a kill; each alert's query has one in its own situation."""
    body = _job(
        tmp_path,
        failurePolicy__budgets={"failures": {"limit": 1}},
        health__hang={"mode": "Report", "minSeconds": 5, "stepTimeFactor": 5},
        health__straggler={"mode": "Report", "windowSteps": 10, "votes": 1, "votesOutOf": 1},
    )
    job = make_job("seen")
    job.create(body)
    job.until_training(2)
    assert prometheus.until('holdfast_job_step{job="seen"}')[0]["metric"]["namespace"]
    os.kill(_one_rank(job), signal.SIGKILL)
    prometheus.until('holdfast_job_recovery_seconds_bucket{phase="restored"} > 0')
    prometheus.until("increase(holdfast_job_restores_total[1m]) > 0")
    prometheus.until(_ALERTS["HoldfastBudgetNearlySpent"])
    for title, query in panels():
        if title != "Points against hosts":
            assert prometheus.until(query), title

    (tmp_path / "slow").touch()
    prometheus.until(_ALERTS["HoldfastJobSlowRanks"])
    (tmp_path / "slow").unlink()
    (tmp_path / "hang").touch()
    prometheus.until(_ALERTS["HoldfastJobHangs"])
    (tmp_path / "hang").unlink()
    (tmp_path / "skip").touch()
    prometheus.until(_ALERTS["HoldfastCheckpointStale"])
    (tmp_path / "saved").rename(tmp_path / "moved")
    (tmp_path / "saved").write_text("no folder")
    (tmp_path / "skip").unlink()
    prometheus.until(_ALERTS["HoldfastCheckpointFails"])


def test_alerts_of_an_operator_that_does_not_lead(release: Release, prometheus: Prometheus) -> None:
    """Without an operator there is no series of it, and that is an alert."""
    prometheus.until("holdfast_operator_leader == 1")
    with release.away():
        prometheus.until(_ALERTS["HoldfastOperatorNotLeading"])
