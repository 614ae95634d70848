"""A process dies at each named line of a save, a commit, a restore: nothing announced is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.kill_points import KEEPER, LED, TRAINER
from house.patience import patience

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPT = SUPPORT / "campaigns" / "named_kills.py"
POINTS = {"trainer": TRAINER, "keeper": KEEPER, "led": LED}


def test_there_are_as_many_points_as_were_promised() -> None:
    """Of each kind, and none twice."""
    points = [point for kind in POINTS.values() for point in kind]
    assert len({point.name for point in points}) == len(points) >= 60
    assert all(len(kind) >= 15 for kind in POINTS.values())


@pytest.mark.train
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", POINTS)
def test_a_kill_at_any_named_line_breaks_no_promise(kind: str) -> None:
    """SIGKILL of a trainer, of a keeper, of the node that commits or of its master's memory.

    Each line is reached. Then all ranks start from one version, no byte of it is another's, it is
    not older than what was announced or in all memories, and in the end nothing half done is left.
    """
    done = subprocess.run(
        [sys.executable, SCRIPT, kind],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=390 * patience(),
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(POINTS[kind]), done.stderr
    assert [one["point"] for one in said if not one["hit"]] == []
    assert [one for one in said if one["wrong"]] == [], done.stderr
