"""SIGKILL of trainers and keepers at random instants and lines: nothing announced is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from house.extended import usual

MORE = pytest.mark.extended(
    "arenas in files: `make soak` kills there too",
    held_by=[
        "flash/process/test_kills.py::test_kills_lose_no_announcement_and_mix_no_state",
        "flash/process/test_named_kills.py::test_a_kill_at_any_named_line_breaks_no_promise",
    ],
)

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPT = SUPPORT / "campaigns" / "flash_kills.py"
KILLS = 150
"""A tenth of what a campaign of the soak runs."""


@pytest.mark.slow
@pytest.mark.parametrize("flags", usual([[], ["--files"], ["--held"]], [], ["--held"], more=MORE))
def test_kills_lose_no_announcement_and_mix_no_state(flags: list[str]) -> None:
    """Ranks agree on one version, its every byte is of it, and it is not older than announced.

    In files, or held by a runner too, it is not older either than the newest that all ranks had,
    whoever was killed.
    """
    seed = int(os.environ.get("FLASH_SEED", random.randrange(2**32)))
    done = subprocess.run(
        [sys.executable, SCRIPT, "--seed", str(seed), "--kills", str(KILLS), *flags],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), f"seed {seed}: {done.stderr}"
    said = json.loads(done.stdout)
    assert said["wrong"] == [], f"seed {seed}"
    assert sum(said["kills"].values()) == KILLS
    assert said["resumed"]["memory"] > 0, f"seed {seed}"
    assert said["resumed"]["storage"] > 0 or flags, f"seed {seed}"
