"""The page of the overhead benchmark judges what was measured."""

from __future__ import annotations

import pytest

from bench import record
from bench.overhead.page import overhead, page
from bench.overhead.results import SdkCost, Trial, from_line

ABOUT = {
    "date": "today",
    "commit": "abc",
    "cores": 2,
    "cpu": "CPU",
    "kernel": "6",
    "python": "3.11",
    "torch": "2",
}


def _results(call_ns: float, launcher_us: float) -> list[SdkCost | Trial]:
    trials = [Trial("torchrun", pair, 30_000.0, 1.0, 0.0, 2, 2.0 + pair) for pair in range(3)] + [
        Trial("holdfast", pair, 30_300.0, launcher_us, 90.0, 2, 2.0) for pair in range(3)
    ]
    return [SdkCost("under an agent", call_ns, 1.0, 2.0, 3.0), *trials]


def test_what_runs_beside_the_ranks_and_the_calls_make_the_overhead() -> None:
    """A launcher's CPU time counts as if one rank had lost it, and so does a call's."""
    cost, *trials = _results(3000.0, 60.6)
    assert isinstance(cost, SdkCost)
    share = overhead([cost], [one for one in trials if isinstance(one, Trial)])
    assert share == pytest.approx(60.6 / 30_300 + 3 / 30_300)


@pytest.mark.parametrize(
    ("call_ns", "launcher_us", "kept"), [(900, 60, 2), (2001, 60, 1), (900, 200, 1)]
)
def test_a_promise_is_kept_or_not(call_ns: float, launcher_us: float, kept: int) -> None:
    """Each of the two bars is judged by itself."""
    text = page(ABOUT, _results(call_ns, launcher_us))
    assert text.count("| yes |") == kept
    assert text.count("| **no** |") == 2 - kept
    assert "1.010 × torchrun's (1.010–1.010)" in text
    assert "load average 2.0–4.0" in text


def test_results_survive_their_file() -> None:
    """What is written is what is read, rounding aside."""
    for result in _results(900.5, 60.25):
        assert from_line(record.to_line(result)) == result
