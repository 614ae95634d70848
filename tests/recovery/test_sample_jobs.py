"""Every numbered job file in examples/ runs to its end as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_job import ROOT

pytestmark = pytest.mark.train

FAILS = {"05-budgets": "NoProgress"}
"""Samples that show how a job ends without success, with the reason that they show."""
FILES = sorted((ROOT / "examples").glob("[0-9][0-9]-*.yaml"))


def test_every_sample_is_numbered_once() -> None:
    """The glob that the test below is made from finds the samples."""
    numbers = [file.name[:2] for file in FILES]
    assert len(numbers) >= 10
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_sample_job_ends_as_it_says(file: Path, tmp_path: Path) -> None:
    """`holdfast run examples/NN-….yaml` from the root of the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_cli.main", "run", str(file.relative_to(ROOT))],
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    reason = FAILS.get(file.stem)
    assert done.returncode == (1 if reason else 0), done.stdout[-6000:] + done.stderr[-2000:]
    assert (reason or "succeeded after") in done.stdout
