"""The page of the preflight benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from bench.harness import machine
from bench.preflight.checks import AGAIN, ALONE, PAIR
from bench.preflight.page import page_of

ABOUT = machine.about("preflight", [])


def part(name: str, seconds: float) -> dict[str, Any]:
    """One trial of a part."""
    return {"what": "part", "part": name, "seconds": seconds, "waited": 0.0, "error": ""}


def real(named: int, core: float | None = None, seconds: float = 7.0) -> dict[str, Any]:
    """One check of real agents."""
    return {
        "what": "real",
        "nodes": 4,
        "fault": "dead",
        "named": named,
        "wrong": 0,
        "seconds": seconds,
        "from_hello_s": 9.0,
        "waited": 0.5,
        "core": core,
    }


@pytest.mark.parametrize(("named", "pair", "held"), [(1, 1.0, "yes"), (0, 4.0, "**no**")])
def test_bars_that_are_not_held_are_told(named: int, pair: float, held: str) -> None:
    """One that is named in each trial and a short check, beside one that is not and a long one."""
    parts = [part(ALONE, 2.0), part(AGAIN, 2.0), part(PAIR, pair), part(PAIR, pair + 5.0)]
    text = page_of(ABOUT, [*parts, real(named)])
    rows = [line for line in text.splitlines() if "| 99% |" in line or "| 10 |" in line]
    assert [row.split("|")[-2].strip() for row in rows] == [held, held]
    assert f"| {4.0 + 3 * pair:.1f} |" in rows[1]


def test_the_time_of_real_nodes_counts_where_each_has_a_core() -> None:
    """A node with a part of one is slower, which says nothing of a check on machines."""
    text = page_of(ABOUT, [part(ALONE, 2.0), real(1, 1.0, 9.5), real(1, 0.25, 30.0), real(1)])
    (row,) = (line for line in text.splitlines() if "with a core each" in line)
    assert "| 9.5 | 10 | yes |" in row
    assert "| 4 | 1 | dead |" in text


def test_the_time_of_a_pretended_check_is_that_of_its_rounds() -> None:
    """Rounds alone and in pairs, by the least time of each part."""
    line = {"what": "simulated", "nodes": 16, "fault": "dead", "clusters": 10, "bad": 10}
    line |= {"named": 10, "healthy": 150, "wrong": 0, "alone_rounds": 2, "pair_rounds": 3}
    parts = [part(ALONE, 2.0), part(AGAIN, 3.0), part(PAIR, 1.0)]
    assert "| 2 + 3 | 8.0 |" in page_of(ABOUT, [*parts, line])
