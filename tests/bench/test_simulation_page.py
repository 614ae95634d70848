"""The page of the simulation says what a run measured, and what it did not find."""

from __future__ import annotations

from typing import Any

from bench.harness import machine
from bench.simulation import page_of


def _page(*results: dict[str, Any]) -> str:
    return page_of(machine.about("simulation", []), results)


def test_a_rate_is_shown_with_its_spread() -> None:
    """The middle one, then the least and the greatest."""
    said = _page({"what": "rate", "per_minute": [1400.0, 1200.0, 1300.0]})
    assert "| ≥ 1,000 | 1,300 (1,200–1,400) |" in said


def test_a_bug_that_was_not_found_is_not_counted() -> None:
    """Nor hidden: its row says how long it was looked for."""
    bug = {"what": "bug", "name": "b", "text": "wrong", "seed": 7, "seconds": 0.5, "found": True}
    said = _page(bug, bug | {"name": "c", "seconds": 120.2, "found": False})
    assert "| planted bugs found | all | 1 of 2 |" in said
    assert "| c | wrong | 7 | 120.2 |" in said


def test_a_soak_is_shown_with_its_findings() -> None:
    """As many runs and findings as it had."""
    soak = {"what": "soak", "minutes": 60.0, "first": 5, "runs": 12345, "summary": "all"}
    assert "| 12,345 runs; all; 0 findings |" in _page(soak | {"failures": 0})
