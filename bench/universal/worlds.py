"""Starts a world of ranks for one script under `holdfast-run`, and gathers what it has measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LIMIT_SECONDS: Final = 900.0
"""For one world, s."""
ROOT: Final = Path(__file__).resolve().parents[2]
_AGENT: Final = "from holdfast_agent.main import main; main()"


class WorldError(Exception):
    """A rank failed; the text has its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world: the script that its ranks run, and its restarts."""

    script: Path
    ranks: int
    words: tuple[str, ...]
    preload: str
    """The module that imports what the script needs, before its ranks are forked."""
    restarts: int = 0


def run(world: World, words: Sequence[str], log: Path) -> list[dict[str, Any]]:
    """Run a world on one node to its end; return the lines of JSON that it has logged.

    Raises:
        WorldError: the world failed or took longer than `LIMIT_SECONDS`.
    """
    log.unlink(missing_ok=True)
    command = [sys.executable, "-c", _AGENT, f"--nproc-per-node={world.ranks}"]
    command += [f"--max-restarts={world.restarts}", str(world.script), "--lines", str(log)]
    command += [*world.words, *words]
    name = f"{world.script.name} {' '.join(world.words)}"
    try:
        ended = subprocess.run(
            command,
            env=_environment(world),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{name}: not over in {LIMIT_SECONDS:g} s") from error
    if ended.returncode:
        raise WorldError(f"{name}: {_told(ended.stderr)}")
    return [json.loads(line) for line in log.read_text().splitlines()]


def _environment(world: World) -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
        # The zygote imports torch before a script can set it; of no use to what is measured.
        "TORCHDYNAMO_DISABLE": "1",
        "HOLDFAST_PRELOAD": world.preload,
    }


def _told(errors: str) -> str:
    """Return the end of what the ranks said, without the launcher's own trace."""
    return errors.partition("torch.distributed.elastic.multiprocessing.errors")[0][-3000:]
