"""Mode Act in real jobs: a slow node is replaced by the standby, a hanging world starts anew.

Their ranks sleep instead of computing, so that the machine's other work says little.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_wire.messages import NodeState
from jobs.local_job import RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]

_LOOP = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import holdfast
folder = Path(sys.argv[1])
def planted(name):
    text = folder / name
    return text.exists() and text.read_text() == os.environ["HOLDFAST_NODE_RANK"]
def own_work():
    while planted("hang") and job.restart_count == 0:
        time.sleep(0.1)
dist.init_process_group("gloo")
job = holdfast.init()
done = folder / "done"
first = int(done.read_text()) + 1 if done.exists() else 1
for step in range(first, 100_000):
    time.sleep(0.3 if planted("slow") else 0.2)
    own_work()
    over = torch.tensor([float((folder / "end").exists())])
    dist.all_reduce(over)
    if dist.get_rank() == 0:
        done.write_text(str(step))
        with (folder / "steps").open("a") as log:
            print(step, file=log)
    if job.step(step) is holdfast.SAVE_AND_STOP or over.item():
        break
"""


def _script(folder: Path) -> list[str]:
    path = folder / "script.py"
    path.write_text(_LOOP)
    return [str(path), str(folder)]


def _active(job: RunningJob) -> list[int]:
    return [rank for rank, node in job.nodes().items() if node.state is NodeState.ACTIVE]


def _states(job: RunningJob) -> list[NodeState]:
    return [node.state for node in job.nodes().values()]


def test_a_standby_replaces_a_slow_node_without_a_step_done_twice(
    start_job: StartJob, tmp_path: Path
) -> None:
    """The node is out for good, its place is taken, and each step was done once."""
    thresholds = {"slowdownPercent": 20, "windowSteps": 5, "votes": 3, "votesOutOf": 5}
    job = start_job(
        script=_script(tmp_path),
        minReplicas=2,
        standbys=1,
        health={"straggler": {"mode": "Act", **thresholds}},
    )
    before = job.wait_step(40)
    job.wait_for("a standby", lambda: NodeState.STANDBY in _states(job))
    slow = max(_active(job))
    (tmp_path / "slow").write_text(str(slow))
    event = job.wait_event("StragglerExcluded", text=f"node {slow} leaves")
    assert event.node == str(slow)
    after = job.wait_step(before.step, round_above=before.round)
    assert after.world_size == 2
    assert slow not in _active(job)
    (tmp_path / "end").touch()
    assert job.finish() == 0, job.evidence()
    steps = [int(line) for line in (tmp_path / "steps").read_text().split()]
    assert steps == list(range(1, len(steps) + 1)), "a step was done twice or left out"
    assert "RolledBack" not in job.output


def test_a_world_that_hangs_starts_anew_and_comes_to_its_end(
    start_job: StartJob, tmp_path: Path
) -> None:
    """After the evidence, on the same nodes; the incident names the rank and its line."""
    job = start_job(
        script=_script(tmp_path),
        minReplicas=2,
        health={"hang": {"mode": "Act", "minSeconds": 5}},
    )
    before = job.wait_step(30)
    (tmp_path / "hang").write_text("1")
    job.wait_event("HangFound")
    after = job.wait_step(before.step, round_above=before.round)
    assert after.world_size == 2
    assert sorted(_active(job)) == [0, 1]
    (tmp_path / "end").touch()
    assert job.finish() == 0, job.evidence()
    assert "Hung" in job.cli("goodput", job.name).stdout
