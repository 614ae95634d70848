"""Slow and hanging ranks of scripts that know nothing of Holdfast, in real jobs.

Their ranks sleep instead of computing, so that the machine's other work says little.
"""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path

import pytest

from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]

_SLOW = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
slow, end = Path(sys.argv[1]), Path(sys.argv[2])
while True:
    excess = 0.1 if dist.get_rank() == 2 and slow.exists() else 0.0
    time.sleep(0.2 + excess)
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    over = torch.tensor([float(end.exists())])
    dist.all_reduce(over)
    if over.item():
        break
"""

_ABSENT = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
hang, end = Path(sys.argv[1]), Path(sys.argv[2])
def own_work():
    while hang.exists() and not end.exists():
        time.sleep(0.5)  # one that looks for a file oftener may be waiting for slow storage
while True:
    time.sleep(0.1)
    if dist.get_rank() == 1:
        own_work()
    over = torch.tensor([float(end.exists())])
    dist.all_reduce(over)
    if over.item():
        break
"""


def _script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return [str(path), str(folder / "now"), str(folder / "end")]


def _wait_steps(job: RunningJob, steps: int) -> None:
    """Wait for guessed steps, of each rank that there is."""

    def there() -> bool:
        ranks = [rank for node in job.nodes().values() for rank in node.ranks]
        return bool(ranks) and all(rank.step >= steps for rank in ranks)

    job.wait_for(f"{steps} steps", there)


@pytest.mark.exclusive
def test_a_rank_that_becomes_slow_is_named_by_holdfast_health(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Of four ranks on two nodes, without the SDK; the steps are known too, as guesses."""
    thresholds = {"slowdownPercent": 20, "windowSteps": 5, "votes": 3, "votesOutOf": 5}
    job = start_job(
        script=_script(tmp_path, _SLOW),
        flags=("--nproc-per-node=2",),
        health={"straggler": thresholds},
    )
    _wait_steps(job, 40)
    before = json.loads(job.cli("health", job.name, "-o", "json").stdout)
    assert not [one for one in before["slow"] if one["subject"] != "job"], before
    assert all(rank["step_guessed"] for rank in before["ranks"])
    (tmp_path / "now").touch()
    event = job.wait_event("StragglerFound", text="rank 2 on node 1")
    assert event.node == "1"
    shown = job.cli("health", job.name)
    assert "SLOW  rank 2 on node 1" in shown.stdout
    bars = sorted(line.count("#") for line in shown.stdout.splitlines())
    # A rank that shares a CPU may lag by a little and have a short bar.
    assert bars[-1] > 2 * bars[-2], shown.stdout
    (tmp_path / "end").touch()
    assert job.finish() == 0, job.evidence()


def test_a_rank_that_stays_away_from_a_collective_is_named_with_its_line(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Seconds after the limit, while the others still wait; nothing is ended, training goes on."""
    job = start_job(script=_script(tmp_path, _ABSENT), health={"hang": {"minSeconds": 5}})
    _wait_steps(job, 60)
    (tmp_path / "now").touch()
    event = job.wait_event("HangFound")
    assert "absent from the collective: rank 1" in event.text, event.text
    assert "own_work" in event.text
    assert event.node == "1"
    shown = job.cli("health", job.name).stdout
    assert "HANG  absent from the collective: rank 1 on node 1" in shown, shown
    (tmp_path / "now").unlink()
    job.wait_event("HangOver")
    assert job.status().round == 1
    (tmp_path / "end").touch()
    assert job.finish() == 0, job.evidence()


def test_a_hang_keeps_its_stacks_for_the_next_master_and_after_the_end(
    start_job: StartJob, tmp_path: Path
) -> None:
    """The master is killed in the middle of the hang; incident and file are those of the first."""
    job = start_job(script=_script(tmp_path, _ABSENT), health={"hang": {"minSeconds": 5}})
    _wait_steps(job, 60)
    (tmp_path / "now").touch()
    event = job.wait_event("HangFound")
    job.wait_for("its evidence", lambda: event.incident_id in _with_evidence(job))
    endpoint = job.home.endpoint()
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    job.wait_event("MasterRestored")
    assert _with_evidence(job) == [event.incident_id]
    (tmp_path / "now").unlink()
    job.wait_event("HangOver")
    (tmp_path / "end").touch()
    assert job.finish() == 0, job.evidence()
    assert len([one for one in job.events() if one.reason == "HangFound"]) == 1
    listed = json.loads(job.cli("incidents", job.name, "-o", "json").stdout)
    (hang,) = [one for one in listed["incidents"] if one["cause"] == "Hang"]
    assert (hang["id"], hang["open"]) == (event.incident_id, False)
    saved = tmp_path / "hang.zip"
    job.cli("incident", job.name, hang["id"], "--save", str(saved))
    with zipfile.ZipFile(saved) as zipped:
        assert b"own_work" in zipped.read("stacks/rank-00001.txt")
        assert json.loads(zipped.read("recorder/rank-00000.json"))


def _with_evidence(job: RunningJob) -> list[str]:
    listed = json.loads(job.cli("incidents", job.name, "-o", "json").stdout)
    return list(listed["with_evidence"])
