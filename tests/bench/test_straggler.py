"""The benchmark of a slow replica, in its shortest run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench import ROOT


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "local_sgd/process/test_fsdp2_by_time.py::test_a_fast_replica_weighs_more_and_none_waits_for_the_slow_one_s_steps",
    ],
)
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_fast_replicas_wait_for_a_step_of_the_slow_one() -> None:
    """Each replica trains its steps, the slow one fewer, and rounds are made on the way."""
    command = [sys.executable, "-m", "bench.local_sgd.straggler", "--seconds=2", "--step=0.02"]
    ended = subprocess.run(
        [*command, "--ways=a-edit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    told = json.loads(ended.stdout)
    assert told["counts"] == [100, 100, 100, 25]
    assert told["rounds"] >= 2
    assert told["fast_steps_a_second"] > 0
