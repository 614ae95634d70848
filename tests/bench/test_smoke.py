"""The recovery benchmark from end to end, with the shortest trial that it has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import ROOT
from bench.harness import sandbox
from bench.recovery.__main__ import BENCH
from bench.recovery.results import RECOVERED


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "bench/test_measure.py::test_a_lost_node_is_measured_from_a_recorded_log",
        "bench/test_sandbox.py::test_nothing_outlives_its_sandbox",
        "recovery/test_worker_faults.py::test_crashes_in_every_awkward_moment_lose_nothing",
    ],
)
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_crashes_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    """Holdfast recovers from the loss of either rank; the page shows it; scratch is gone."""
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        pytest.skip(str(error))
    out = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "bench.recovery", "--plan=quick", f"--out={out}"]
    with subprocess.Popen(
        [*command, "--systems=holdfast", "--scenarios=crash"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=560)
        finally:
            run.kill()  # its sandboxes end with it
    assert run.returncode == 0, said
    _, results = BENCH.read(out.read_text().splitlines())
    assert [result.outcome for result in results] == [RECOVERED, RECOVERED], said
    assert {result.target for result in results} == {0, 1}
    assert "| torch | holdfast | either | 2/2 |" in said
    assert not list(Path("/dev/shm").glob(f"holdfast-bench-{run.pid}-*"))  # noqa: S108
