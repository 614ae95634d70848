"""A file with a line for each step of this rank, for comparing two runs.

Written only where HOLDFAST_STEP_LOG names a directory. Each line is one `write` on an O_APPEND
descriptor: a rank that is killed leaves whole lines, and its successor appends to them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import SupportsIndex

from holdfast.environment import Environment


class StepLog:
    """Appends to `rank-N.jsonl`."""

    def __init__(self, directory: Path, environment: Environment) -> None:
        """Open the rank's file.

        Raises:
            OSError: the directory cannot be made or written to.
        """
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"rank-{environment.rank}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._fixed = {
            "rank": environment.rank,
            "round": environment.round,
            "world_size": environment.world_size,
        }

    def write(
        self, step: int, samples: int, loss: float | None, fingerprint: SupportsIndex | None
    ) -> None:
        """Append one line."""
        figures: dict[str, object] = {"step": step, "samples": samples, "loss": loss}
        if fingerprint is not None:
            figures["fingerprint"] = fingerprint
        os.write(self._fd, json.dumps({**figures, **self._fixed}).encode() + b"\n")
