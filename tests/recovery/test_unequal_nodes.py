"""Nodes with different numbers of processes: one world, ranks in node order, the same losses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jobs.local_job import STEPS, TRAIN, RunningJob, assert_same_curve, elastic_job, losses

pytestmark = [pytest.mark.train, pytest.mark.deadline]

AS_MANY_AS_THE_RANK_SAYS = 'exec holdfast-run --nproc-per-node=$((HOLDFAST_NODE_RANK + 1)) "$@"'


@pytest.mark.extended(
    "one real job: places in an uneven world are tested by themselves",
    held_by=[
        "agent/process/test_torchrun_contract.py::test_a_place_in_a_larger_world_shows",
        "recovery/test_node_loss.py::test_a_killed_agent_shrinks_the_world_and_its_successor_joins",
    ],
)
def test_nodes_with_one_and_two_processes_train_and_recover(
    unbroken: dict[int, float], tmp_path: Path
) -> None:
    """Three ranks on two nodes; one rank of the bigger node is killed, then the smaller node."""
    example = [
        *TRAIN,
        f"--steps={STEPS}",
        f"--loss-log={tmp_path / 'loss.jsonl'}",
        f"--checkpoint-dir={tmp_path / 'checkpoints'}",
        "--extra-work-ms=100",
    ]
    job_file = elastic_job("unequal", [])
    [container] = job_file["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", AS_MANY_AS_THE_RANK_SAYS, "sh", *example]
    with RunningJob(job_file, tmp_path) as job:
        first = job.wait_step(12)
        assert first.world_size == 3
        ranks = {node: [rank.rank for rank in info.ranks] for node, info in job.nodes().items()}
        assert ranks == {0: [0], 1: [1, 2]}
        os.kill(job.rank_pid(2), signal.SIGKILL)
        second = job.wait_step(first.step + 5, round_above=first.round)
        assert second.world_size == 3
        os.kill(job.agent_pid(0), signal.SIGKILL)
        assert job.wait_step(second.step + 5, round_above=second.round).world_size in {2, 3}
        assert job.finish() == 0, job.evidence()
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
