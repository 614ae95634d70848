"""The page of the hang benchmark compares with the soonest peer; a trial finds a real hang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.hang.__main__ import main
from bench.hang.page import page
from bench.hang.trial import Hung

ABOUT = {
    "date": "today",
    "commit": "abc",
    "cores": 2,
    "cpu": "CPU",
    "memory_gib": 24,
    "kernel": "6",
    "python": "3.11",
    "torch": "2",
}


@pytest.mark.parametrize(
    ("ours", "said"), [(60.0, "30 (bar 30: yes)"), (62.0, "29 (bar 30: **no**)")]
)
def test_a_hang_is_compared_with_the_soonest_peer(ours: float, said: str) -> None:
    """A peer that noticed nothing counts with the time for which it was watched."""
    results = [
        Hung("torchrun", 1800.0, 2000.0, "Timed out", named=False),
        Hung("dlrover", None, 2000.0, "", named=False),
        Hung("holdfast", ours, 2000.0, "absent: rank 1", named=True),
    ]
    text = page(ABOUT, results)
    assert said in text
    assert "not within 2000" in text


@pytest.mark.extended(
    "runs a benchmark for real; the parts of the product that it drives have tests of their own",
    held_by=[
        "recovery/test_health.py::test_a_rank_that_stays_away_from_a_collective_is_named_with_its_line",
    ],
)
@pytest.mark.train
@pytest.mark.slow
def test_a_planted_hang_is_noticed_and_named(tmp_path: Path) -> None:
    """Of a plain script, with the shortest limit."""
    out = tmp_path / "hang.jsonl"
    assert main(["--systems", "holdfast, minSeconds 5", "--limit=60", f"--out={out}"]) == 0
    _, line = out.read_text().splitlines()
    found = Hung(**json.loads(line))
    assert found.named
    assert found.seconds is not None
    assert 5 <= found.seconds < 60
