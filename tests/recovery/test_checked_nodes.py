"""Nodes of a real job that are checked before they join: a planted bad one is named.

The nodes of these jobs are agents on one machine, so they measure themselves and no network. What
is planted happens to the process that measures: nothing in the product knows of it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from house.extended import usual
from jobs.local_job import ROOT, RunningJob, StartJob

pytestmark = [pytest.mark.train, pytest.mark.exclusive, pytest.mark.timeout(300)]

MORE = pytest.mark.extended(
    "a process that dies: its verdict is tested by itself",
    held_by=[
        "agent/process/test_node_check.py::test_a_measurement_that_hangs_or_dies_is_named_and_the_next_ones_are_made",
        "recovery/test_checked_nodes.py::test_the_bad_node_is_named_before_it_joins",
    ],
)
SLOW_COPIES = ROOT / "tests/support/nodes/slow_copies"
PROGRAM = "holdfast_agent.health.node_check.program"
SCRIPT = """
import sys, time
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
while not Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""

HANGS = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
import holdfast
dist.init_process_group("gloo")
job = holdfast.init()
for step in range(1, 100_000):
    time.sleep(0.1)
    while step == 60 and dist.get_rank() == 1 and job.restart_count == 0:
        time.sleep(0.1)
    over = torch.tensor([float(Path(sys.argv[1]).exists())])
    dist.all_reduce(over)
    if job.step(step) is holdfast.SAVE_AND_STOP or over.item():
        break
"""


def measuring(job: RunningJob, rank: int) -> psutil.Process | None:
    """The process that measures for a node; None: there is none now."""
    node = job.nodes().get(rank)
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(node.agent_pid).children() if node and node.agent_pid else ():
            if PROGRAM in child.cmdline():
                return child
    return None


def _ended_and_judged(job: RunningJob, rank: int) -> bool:
    """Kill what measures for a node, however often it is started; tell whether a verdict is there.

    One that is killed while it prepares itself, before the check, is followed by another.
    """
    child = measuring(job, rank)
    if child is not None:
        child.kill()
    return any(event.reason == "PreflightFailed" for event in job.events())


@pytest.mark.parametrize(
    ("plant", "nodes"), usual([("dies", 3), ("slow memory", 2)], ("slow memory", 2), more=MORE)
)
def test_the_bad_node_is_named_before_it_joins(
    start_job: StartJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: str,
    nodes: int,
) -> None:
    """Of two nodes and of three; under Report it joins, and its verdict stands beside it."""
    script, end = tmp_path / "script.py", tmp_path / "end"
    script.write_text(SCRIPT)
    if plant == "slow memory":
        monkeypatch.setenv("PYTHONPATH", str(SLOW_COPIES))
        monkeypatch.setenv("SLOW_COPIES", "1")
    job = start_job(
        script=[str(script), str(end)],
        replicas=nodes,
        minReplicas=nodes,
        health={"preflight": {"mode": "Report"}},
    )
    if plant == "dies":
        job.wait_for("the end of each measurement on node 1", lambda: _ended_and_judged(job, 1))
    event = job.wait_event("PreflightFailed", text="node 1 is")
    assert event.node == "1"
    job.wait_event("WorldAssigned")
    shown = {node.node_rank: node.preflight for node in job.nodes().values()}
    assert shown[1] in {"slow", "faulty"}, job.evidence()
    assert "faulty" not in {shown[rank] for rank in range(nodes) if rank != 1}, job.evidence()
    assert "CHECK" in job.cli("nodes", job.name).stdout
    end.touch()
    assert job.finish() == 0, job.evidence()


def test_a_node_that_a_hang_was_laid_to_is_checked_again(
    start_job: StartJob, tmp_path: Path
) -> None:
    """Its ranks have ended by then; it trains on with the other one."""
    script, end = tmp_path / "script.py", tmp_path / "end"
    script.write_text(HANGS)
    job = start_job(
        script=[str(script), str(end)],
        minReplicas=2,
        health={"preflight": {"mode": "Report"}, "hang": {"mode": "Act", "minSeconds": 5}},
    )
    job.wait_event("PreflightBegun", text="again: hang since its last check", timeout_s=120.0)
    after = job.wait_step(1, round_above=1)
    assert after.world_size == 2
    begun = [one.text for one in job.events() if one.reason == "PreflightBegun"]
    assert len(begun) == 2, begun
    assert "node 1 is checked before it joins" in begun[1]
    assert "ranks run" not in "".join(one.preflight_reason for one in job.nodes().values())
    end.touch()
    assert job.finish() == 0, job.evidence()
