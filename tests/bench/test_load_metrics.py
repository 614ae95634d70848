"""The verdict and the page of what metrics cost a master."""

from __future__ import annotations

import pytest

from bench.harness import machine
from bench.load.metrics import OFF, ON, judge, page_of
from bench.load.results import OURS, LoadResult


def _turn(variant: str, cores: float, scrape_ms: float | None = None) -> LoadResult:
    figures = {"cores": cores, "message_us": 100.0, "rss_mb": 60.0}
    if scrape_ms is not None:
        figures["scrape_cpu_ms"] = scrape_ms
    return LoadResult(
        system=OURS,
        scenario="metrics",
        clients=3_000,
        variant=variant,
        figures=figures,
        samples={"message_us": [100.0, 110.0]},
    )


@pytest.mark.parametrize(("scrape_ms", "kept"), [(29.0, True), (31.0, False)])
def test_a_scrape_is_held_against_the_masters_own_cpu(scrape_ms: float, kept: bool) -> None:  # noqa: FBT001
    """30 ms each 15 s are 2 % of a tenth of a core."""
    [verdict] = judge([_turn(OFF, 0.1), _turn(ON, 0.2, scrape_ms)])
    assert verdict.kept is kept


def test_without_a_turn_of_each_kind_nothing_is_judged() -> None:
    """There is nothing to compare with."""
    [verdict] = judge([_turn(ON, 0.2, 1.0)])
    assert verdict.kept is None


def test_the_page_has_each_turn_and_the_ratio() -> None:
    """With what else ran on the machine."""
    about = {**machine.about("metrics", []), "grpc": "1"}
    text = page_of(about, [_turn(OFF, 0.1), _turn(ON, 0.2, 4.0)])
    assert "| 3,000 | off | 0.1 |" in text
    assert "on over off: 1.000 (0.909–1.100)" in text
