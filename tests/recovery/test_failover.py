"""Masters killed at random instants: some of what `python -m bench.failover` does."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.failover.__main__ import run
from bench.failover.page import problems

pytestmark = [pytest.mark.train, pytest.mark.deadline]

SEED = 20261122
INSTANTS = 6


@pytest.mark.timeout(300)  # deaths and recoveries one after another: 30 s on a quiet machine
def test_a_master_that_is_killed_at_any_instant_costs_no_step_and_no_worker(tmp_path: Path) -> None:
    """Real masters, agents and ranks, each second time without the journal; a watcher beside."""
    lines: list[Mapping[str, Any]] = []
    run(INSTANTS, SEED, tmp_path, lines.append, torch=False)
    assert problems(lines) == [], f"seed {SEED}"
    kinds = collections.Counter(line["kind"] for line in lines)
    assert kinds == {"instant": INSTANTS, "run": 1}
    assert lines[-1]["resumed"] > 0
