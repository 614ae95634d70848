"""Time from a launcher's start to the first collective of a small script, beside torchrun.

Read from the ranks' own clock, which is the launcher's: both are processes of one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.overhead.step import LAUNCHERS

SCRIPT = Path(__file__).with_name("script.py")
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start under one launcher."""

    launcher: str
    ranks: int
    pair: int
    first_collective_s: float
    """Seconds from the start of the launcher's process until the last rank had the sum."""
    over_s: float
    """Seconds until the launcher's process had ended."""
    load: float
    """Load average of the last minute, at the end."""


def from_line(line: str) -> Start:
    """Read a result."""
    return Start(**json.loads(line))


def measure(pairs: int, ranks: int, folder: Path, add: Callable[[Start], None]) -> None:
    """Start the script in pairs, one under each launcher; each pair begins with the other one."""
    for launcher in LAUNCHERS:
        _start(launcher, ranks, -1, folder)  # bytecode and the page cache, for both alike
    for pair in range(pairs):
        for launcher in sorted(LAUNCHERS, reverse=bool(pair % 2)):
            add(_start(launcher, ranks, pair, folder))


def _start(launcher: str, ranks: int, pair: int, folder: Path) -> Start:
    log = folder / f"{launcher}.{ranks}.{pair}.jsonl"
    words = [f"--nproc-per-node={ranks}", str(SCRIPT), str(log)]
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    over = time.monotonic()
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if ended.returncode != 0 or [line["sum"] for line in lines] != [ranks] * ranks:
        raise RuntimeError(f"{launcher}: exit code {ended.returncode}, {lines}\n{ended.stderr}")
    return Start(
        launcher=launcher,
        ranks=ranks,
        pair=pair,
        first_collective_s=max(line["moment"] for line in lines) - begun,
        over_s=over - begun,
        load=os.getloadavg()[0],
    )
