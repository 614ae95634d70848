"""Runs of the example's training script without an agent, and the loss curves they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from house import forks
from house.patience import patience
from house.repository import ROOT

SCRIPT = ROOT / "examples" / "train_gpt.py"
TOLERANCE = 2e-5
"""Nats. Other world sizes add floats up in another order; measured: 2e-6 over 700 steps."""
_LIMIT_SECONDS = 150


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has ended."""

    code: int
    output: str


def train(*flags: str | Path, ranks: int = 0, script: Path = SCRIPT) -> Ended:
    """Run a script alone (0 ranks), or under torchrun on this machine."""
    if not ranks:
        alone = forks.run([str(script), *map(str, flags)], env=os.environ, timeout=_LIMIT_SECONDS)
        return Ended(alone.returncode, alone.stdout + alone.stderr)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *torchrun, script, *flags],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_SECONDS * patience(),
    )
    return Ended(done.returncode, done.stdout)


def steps_in(log: Path) -> list[dict[str, float]]:
    """Return the lines of a loss log, as they were written."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def assert_follows(log: Path, unbroken: Path) -> None:
    """Every step, those done twice too, saw the unbroken run's samples and came to its loss."""
    wanted = {line["step"]: line for line in steps_in(unbroken)}
    found = steps_in(log)
    assert {line["step"] for line in found} == set(wanted)
    wrong = [
        (line, wanted[line["step"]])
        for line in found
        if abs(line["loss"] - wanted[line["step"]]["loss"]) > TOLERANCE
        or line["fingerprint"] != wanted[line["step"]]["fingerprint"]
        or line["samples"] != wanted[line["step"]]["samples"]
    ]
    assert wrong == []
