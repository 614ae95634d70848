"""A wall clock that jumps by an hour all the time: nothing waits, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from jobs.local_job import ROOT, STEPS, StartJob, assert_same_curve, losses, slow

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(300)]
JUMPS = ROOT / "tests" / "support" / "clock_jumps"
KILLS = ("rank", "agent", "agent", "master")


def test_a_wall_clock_that_jumps_costs_no_step_and_delays_nothing(
    start_job: StartJob,
    unbroken: dict[int, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runner, master, agents and ranks see another hour several times a second, each its own."""
    seed = int(os.environ.get("CLOCK_SEED", random.randrange(2**32)))
    told, processes = f"CLOCK_SEED={seed}", tmp_path / "processes"
    processes.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(JUMPS), prepend=os.pathsep)
    monkeypatch.setenv("CLOCK_JUMPS", f"{processes}:{seed}")
    job = start_job(slow(400), "--save-every=5")
    state = job.wait_step(10)
    for victim in KILLS:
        announced, epoch = state.stored_step, state.epoch
        if victim == "master":
            endpoint = job.home.endpoint()
            assert endpoint is not None
            os.kill(endpoint.pid, signal.SIGKILL)
            job.wait_for("a new epoch", lambda: job.status().epoch > epoch)  # noqa: B023
        else:
            pid = job.rank_pid(1) if victim == "rank" else job.agent_pid(0)
            os.kill(pid, signal.SIGKILL)
            state = job.wait_step(1, round_above=state.round)
        job.wait_for(
            f"both nodes ({told})", lambda: job.status().world_size == 2
        )  # a replacement waits a while
        state = job.wait_step(max(state.step, announced) + 3)
        assert state.stored_step >= announced, told
    assert job.finish() == 0, f"{told}\n{job.evidence()}"
    assert_same_curve(losses(tmp_path / "loss.jsonl"), unbroken, STEPS)
    commands = " | ".join(path.read_text() for path in processes.iterdir())
    for part in ("holdfast_cli.main run", "holdfast_master", "holdfast-run"):
        assert part in commands, "its clock has to have jumped"
