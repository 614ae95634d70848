"""The load benchmark's arithmetic, and the verdicts and page that its results become."""

from __future__ import annotations

import math

import pytest

from bench.harness import machine
from bench.harness.page import ratio
from bench.load import figures
from bench.load.__main__ import FILES_BESIDE, fitting
from bench.load.herd import merged
from bench.load.page import judge, number, page_of
from bench.load.results import FAILURE, HERD, OURS, PEER, STEADY, LoadResult
from bench.load.usage import parse


def _result(scenario: str, clients: int, **more: object) -> LoadResult:
    given = {"system": OURS, "scenario": scenario, "clients": clients} | more
    return LoadResult(**given)  # type: ignore[arg-type]


def _verdict(results: list[LoadResult], words: str) -> tuple[str, bool | None]:
    (found,) = [verdict for verdict in judge(results) if words in verdict.text]
    return found.reached, found.kept


def test_a_percentile_is_one_of_the_values() -> None:
    """The least value that so many do not exceed."""
    values = [float(at) for at in range(1, 101)]
    assert [figures.percentile(values, at) for at in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert figures.percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 50)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_growth_finds_the_power_of_n_log_n(power: float) -> None:
    """Whatever the constant in front."""
    costs = {n: 3e-5 * (n * math.log(n)) ** power for n in (100, 1_000, 3_000, 10_000)}
    assert figures.growth(costs) == pytest.approx(power)
    assert figures.growth({100: 1.0, 1_000: 2.0}) is None


def test_a_constant_part_makes_growth_no_worse() -> None:
    """Small sizes mostly show it."""
    found = figures.growth({n: 0.05 + 1e-5 * n * math.log(n) for n in (100, 1_000, 10_000)})
    assert found is not None
    assert found < 1


def test_a_ratio_spans_every_pairing() -> None:
    """No pair of their windows and ours is outside."""
    assert ratio([400.0, 500.0, 600.0], [100.0, 125.0], figures.median) == (5.0, 3.2, 6.0)
    assert ratio([], [1.0]) is None


def test_counts_of_processes_are_added_and_the_latest_time_stays() -> None:
    """Rounds by number, reasons by text."""
    one = {"up": 2, "welcomed_at": 5.0, "rounds": {"1": [2, 7.0]}, "ended": {"a": 1}}
    two = {"up": 3, "welcomed_at": 4.0, "rounds": {"1": [3, 6.0], "2": [1, 9.0]}, "ended": {"a": 2}}
    assert merged([one, two]) == {
        "up": 5,
        "welcomed_at": 5.0,
        "rounds": {1: (5, 7.0), 2: (1, 9.0)},
        "ended": {"a": 3},
    }


def test_proc_is_read_also_where_the_command_has_brackets() -> None:
    """User and system time in seconds, memory in megabytes."""
    stat = "7 (py (x) y) S 1 " + " ".join(str(at) for at in range(5, 60))
    seen = parse(stat, "VmHWM:\t 2000 kB\nVmRSS:\t 1000 kB\n", 12, 100)
    assert seen.cpu_s == pytest.approx((14 + 15) / 100)
    assert (seen.rss_mb, seen.peak_mb, seen.files) == (1.024, 2.048, 12)


def test_too_few_open_files_make_the_sizes_smaller_and_that_is_said() -> None:
    """The number that is needed is named."""
    sizes, said = fitting([100, 3_000, 10_000], 2_000)
    assert sizes == [100, 2_000 - FILES_BESIDE]
    assert any("10,200 open files" in text for text in said)
    assert fitting([100], 2_000) == ([100], [])


def test_a_promise_is_kept_broken_or_not_measured() -> None:
    """By the size and variant that it names."""
    light = _result(STEADY, 3_000, variant="a heartbeat per 5 s", figures={"cores": 0.2})
    heavy = _result(STEADY, 3_000, variant="a heartbeat per 5 s", figures={"cores": 0.3})
    text = "heartbeat per 5 s: core"
    assert _verdict([light], text) == ("0.20", True)
    assert _verdict([heavy], text) == ("0.30", False)
    assert _verdict([_result(STEADY, 3_000)], text) == ("not measured", None)


def test_a_restarted_worker_breaks_the_herds_promise() -> None:
    """Nobody is restarted when the master is."""
    fine = {"rounds_made": 0.0, "workers_killed": 0.0}
    assert _verdict([_result(HERD, 9, figures=fine)], "worlds made") == ("0", True)
    bad = _result(HERD, 9, figures={"rounds_made": 1.0, "workers_killed": 9.0})
    assert _verdict([bad], "workers killed") == ("9", False)


def test_the_peers_ratio_is_of_the_same_number_of_clients() -> None:
    """Medians of the windows."""
    ours = _result(STEADY, 100, samples={"message_us": [100.0]})
    theirs = _result(
        STEADY, 100, system=PEER, variant="grpc poll", samples={"message_us": [250.0, 260.0, 270.0]}
    )
    assert _verdict([ours, theirs], "poll call, 100 clients") == ("2.6× (2.5–2.7)", False)


def test_the_page_shows_every_scenario_that_ran() -> None:
    """And none that did not."""
    about = machine.about("load", ["DLRover: no network"]) | {"grpc": "1", "open_files": 9}
    shown = page_of(
        about,
        [_result(FAILURE, 1_000, figures={"told_s_p50": 0.25}, load=1.25)],
    )
    assert "## A worker fails" in shown
    assert "| 1,000 |  | 0.25 | – | – | – | – | – | 1.2 |" in shown
    assert "Left out: DLRover: no network" in shown
    assert "## DLRover" not in shown
    assert "Watchers" not in shown


def test_numbers_carry_as_many_digits_as_they_should() -> None:
    """Thousands with a comma, small ones with two digits."""
    shown = [number(value) for value in (None, 0.0, 0.123, 12.34, 123.4, 1234.5)]
    assert shown == ["–", "0", "0.12", "12.3", "123", "1,234"]
