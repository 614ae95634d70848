"""The page of the hang benchmark compares with the soonest peer; a trial finds a real hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.hang.__main__ import BENCH, main, page_of
from bench.hang.trial import Hung
from bench.harness import machine

ABOUT = machine.about("record", {})


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
    text = page_of(ABOUT, results)
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
    (found,) = BENCH.read(out.read_text().splitlines())[1]
    assert found.named
    assert found.seconds is not None
    assert 5 <= found.seconds < 60
