"""`holdfast run --chaos` on the example: faults from a seed, and the same work in the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from house import forks
from jobs.local_job import ROOT, TRAIN, elastic_job

pytestmark = [pytest.mark.train, pytest.mark.deadline]

SEED = 2127
"""A master is lost with its journal; half of the nodes are cut off for 7 s; an agent is frozen."""


def test_a_job_under_random_faults_does_the_same_work(tmp_path: Path) -> None:
    """Four faults; the same samples, losses as in the run in peace, nothing left."""
    script = [
        *TRAIN,
        "--steps=120",
        "--extra-work-ms=100",
        f"--checkpoint-dir={tmp_path}/checkpoints-$(HOLDFAST_JOB_UID)",
    ]
    job = elastic_job("stormy", script)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    chaos = f"seed={SEED},mtbf=3,most=4"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_cli.main", "run", str(file), "--chaos", chaos],
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"seed {SEED}\n{done.stdout}\n{done.stderr}"
    struck = re.search(rf"chaos: [2-4] faults \(seed {SEED}\): (.*)", done.stdout)
    assert struck, done.stdout
    assert "lose-master 1" in struck[1], done.stdout
    assert "partition-half 1" in struck[1], done.stdout
    assert "chaos: the same work: 120 steps saw the same samples (compared by" in done.stdout


_INTERRUPTED = """
import os, signal, sys, time
from pathlib import Path
from holdfast_cli.runner.start import RunOptions, run_job

def direct(home, view, ended):
    while not home.endpoint():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
    asked = time.monotonic()
    while not ended():
        time.sleep(0.01)
    print(time.monotonic() - asked, flush=True)
    os.kill(os.getpid(), signal.SIGINT)  # at once: nobody here waits for the worker's grace

run_job(Path(sys.argv[1]), RunOptions(director=direct), os.environ)
"""


def test_an_interrupted_job_gets_no_more_faults(tmp_path: Path) -> None:
    """Ctrl-C ends the chaos at once; a worker that heeds no signal keeps its job for seconds."""
    job = elastic_job("stubborn", [], replicas=1)
    (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", "trap '' TERM; sleep 60"]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    done = forks.run(
        ["-c", _INTERRUPTED, str(file)],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        timeout=60,
        imports=forks.Imports.SERVICES,
    )
    (seconds,) = re.findall(r"^(\d+\.\d+)$", done.stdout, re.MULTILINE)
    assert float(seconds) < 10, done
