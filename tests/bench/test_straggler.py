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
        "local_sgd/process/test_quorum_rounds.py::test_a_replica_that_is_steadily_slow_is_in_rounds_with_its_steps",
    ],
)
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_fast_replicas_make_rounds_without_a_barrier() -> None:
    """Each replica trains its steps, the slow one fewer, and rounds are made on the way."""
    command = [sys.executable, "-m", "bench.local_sgd.straggler", "--seconds=2", "--step=0.02"]
    ended = subprocess.run(
        [*command, "--ways=no-barrier"],
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
