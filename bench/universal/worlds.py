"""Starts a world of ranks for one script, and gathers what each rank has measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 900.0
"""For one world, s."""
ROOT = Path(__file__).resolve().parents[2]


class WorldError(Exception):
    """A rank failed; the text has its last words."""


def run(script: Path, ranks: int, words: Sequence[str], log: Path) -> list[dict[str, Any]]:
    """Run a script in a world of one node; return the lines of JSON that its ranks have logged.

    Raises:
        WorldError: the world failed or took longer than `LIMIT_SECONDS`.
    """
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", str(script), "--lines", str(log), *words]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests/support"))),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        ended = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{script.name} {words}: not over in {LIMIT_SECONDS:g} s") from error
    if ended.returncode:
        raise WorldError(f"{script.name} {words}: {_told(ended.stderr)}")
    return [json.loads(line) for line in log.read_text().splitlines()]


def _told(errors: str) -> str:
    """Return the end of what the ranks said, without the launcher's own trace."""
    return errors.partition("torch.distributed.elastic.multiprocessing.errors")[0][-3000:]
