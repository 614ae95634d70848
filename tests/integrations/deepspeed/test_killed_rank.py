"""The example's job under a real `holdfast run`: a rank is killed, and the world shrinks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jobs.local_job import ROOT, RunningJob, losses

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(400)]
STEPS = 60
EXAMPLE = ROOT / "examples/with_deepspeed"


@pytest.mark.extended(
    "what DeepSpeed saves, and how a job survives kills and scaling, have tests of their own",
    held_by=[
        "integrations/deepspeed/test_own_calls.py::test_the_own_calls_load_any_tag_into_another_stage_and_world",
        "recovery/test_rescale.py::test_scaling_and_restarting_by_command_loses_no_step",
    ],
)
def test_a_killed_rank_and_a_smaller_world_leave_the_curve_as_it_is(tmp_path: Path) -> None:
    """Rank 1 of 3 is killed, then two ranks go on: each step's loss is the unbroken run's."""
    log, calm = tmp_path / "loss.jsonl", tmp_path / "calm.jsonl"
    folder = tmp_path / "checkpoints"
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    job["spec"]["replicas"] = 3
    [container] = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = [
        *container["command"][:3],
        *(f"--steps={STEPS}", "--pause-ms=200", f"--loss-log={log}", f"--checkpoint-dir={folder}"),
    ]
    with RunningJob(job, tmp_path) as running:
        before = running.wait_step(8, timeout_s=150)
        os.kill(running.rank_pid(1), signal.SIGKILL)
        after = running.wait_step(before.step + 3, round_above=before.round, timeout_s=150)
        assert after.world_size == 3
        done = running.cli("scale", running.name, "2")
        assert done.returncode == 0, done.stderr
        last = running.wait_step(after.step + 3, round_above=after.round, timeout_s=150)
        assert last.world_size == 2
        assert running.finish(200) == 0, running.evidence()
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"),
            *(EXAMPLE / "train.py", f"--steps={STEPS}", f"--loss-log={calm}"),
            f"--checkpoint-dir={tmp_path / 'calm'}",
        ],
        check=True,
        capture_output=True,
        timeout=200,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )
    got, wanted = losses(log), losses(calm)
    assert sorted(got) == list(range(1, STEPS + 1))
    assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)
