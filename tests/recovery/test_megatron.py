"""A real job of the example: a rank dies, and a node; the rest goes on in another layout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from house.patience import patience
from house.repository import ROOT
from jobs.local_job import RunningJob, elastic_job, loss_lines

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
SCRIPT = [
    str(ROOT / "tests" / "support" / "megatron_worlds" / "on_cpu.py"),
    str(ROOT / "examples" / "with_megatron" / "train_gpt.py"),
]
STEPS = 60


def _flags(folder: Path) -> list[str]:
    return [
        f"--steps={STEPS}",
        "--tensor=2",
        f"--checkpoint-dir={folder / 'checkpoints'}",
        f"--loss-log={folder / 'loss.jsonl'}",
    ]


@pytest.mark.extended(
    "what Megatron saves, and how a job survives, have tests of their own",
    held_by=[
        "integrations/megatron/test_drop_in.py::test_a_job_goes_on_with_all_that_megatron_counts",
        "integrations/megatron/test_reshapes.py::test_any_layout_goes_on_from_any_other",
        "recovery/test_node_loss.py::test_a_killed_agent_shrinks_the_world_and_its_successor_joins",
    ],
)
def test_a_lost_rank_and_a_lost_node_change_no_loss(tmp_path: Path) -> None:
    """A killed rank restarts in its layout; a drained node leaves one rank, without parallelism."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, "--nproc-per-node=2", *SCRIPT, *_flags(alone)],
        check=True,
        capture_output=True,
        timeout=120 * patience(),
    )
    unbroken = {line["step"]: line for line in loss_lines(alone / "loss.jsonl")}
    with RunningJob(elastic_job("megatron", [*SCRIPT, *_flags(together)]), tmp_path) as job:
        before = job.wait_step(8)
        os.kill(job.rank_pid(1), signal.SIGKILL)
        again = job.wait_step(before.step + 4, round_above=before.round)
        assert again.world_size == 2, job.evidence()
        done = job.cli("drain", job.name, "1")
        assert done.returncode == 0, done.stderr
        after = job.wait_step(again.step + 4, round_above=again.round)
        assert after.world_size == 1, job.evidence()
        assert job.finish() == 0, job.evidence()
    lines = list(loss_lines(together / "loss.jsonl"))
    assert {(line["tensor"], line["world"]) for line in lines} == {(2, 2), (1, 1)}
    assert {line["step"] for line in lines} == set(range(1, STEPS + 1))
    for line in lines:
        assert line["loss"] == pytest.approx(unbroken[line["step"]]["loss"], abs=2e-5), line
