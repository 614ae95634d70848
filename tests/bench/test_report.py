"""The page and the verdicts that a results file becomes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness import machine
from bench.harness.page import fill, ratio, table, times
from bench.harness.record import to_line
from bench.recovery.__main__ import BENCH
from bench.recovery.measure import Recovery
from bench.recovery.page import BARS, judge, page, spread
from bench.recovery.results import NEVER, RECOVERED, UNNOTICED, Case, Result

ABOUT = machine.about("quick", {})


def _recovery(total_s: float) -> Recovery:
    return Recovery(
        total_s=total_s,
        restore_s=0.02,
        pause_s=total_s,
        save_s=0.0,
        redone_steps=4,
        world=2,
        false_starts=0,
        stages={"started": total_s - 0.1, "first step": 0.1},
    )


def _result(
    system: str, total_s: float | None, *, measured: str = "crash", restore: str = "torch"
) -> Result:
    variant = "default" if system == "holdfast" else "tuned"
    return Result(
        case=Case(scenario=measured, system=system, variant=variant, restore=restore, target=0),
        measured=measured,
        target=0,
        outcome=NEVER if total_s is None else RECOVERED,
        reason="every agent has exited" if total_s is None else "",
        recovery=None if total_s is None else _recovery(total_s),
    )


def test_a_file_begins_with_what_is_known_of_the_run() -> None:
    """The first line is about the run, each other one a result, with a recovery or without."""
    run = [_result("holdfast", 0.25), _result("torchrun", None)]
    about, results = BENCH.read([json.dumps({"about": ABOUT}), *map(to_line, run), ""])
    assert (about, results) == (ABOUT, run)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "–"),
        ([0.2], "0.20"),
        ([0.2, 0.3, 0.1], "0.20 (0.10–0.30)"),
        ([44.04, 47.0], "45.5 (44.0–47.0)"),
        ([120.4], "120"),
    ],
    ids=["none", "one", "several", "even", "long"],
)
def test_seconds_are_shown_as_median_and_spread(values: list[float], text: str) -> None:
    """The median comes first, then the least and the greatest."""
    assert spread(values) == text


def test_a_ratio_is_bounded_by_the_worst_pairings() -> None:
    """Least over greatest and greatest over least."""
    assert times(ratio([4.0, 5.0, 6.0], [0.2, 0.25, 0.5])) == "20.0× (8.0–30.0)"
    assert times(ratio([], [0.2])) == "–"
    assert times(ratio([4.0], [])) == "–"


def test_a_table_has_one_line_per_row() -> None:
    """Header, rule, rows."""
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's words: two sections, and a paragraph that may say nothing."""
    (tmp_path / "bench").mkdir()
    words = "# Page\n\n${run}\n\n${bars}\n\n## One\n\nText.\n\n${one}\n\n## Two\n\n${two}\n"
    (tmp_path / "bench/p.md.template").write_text(words)
    monkeypatch.setattr("bench.harness.page.ROOT", tmp_path)


@pytest.mark.usefixtures("template")
def test_what_says_nothing_is_left_out_of_a_page() -> None:
    """A section with its heading, and a paragraph; a value is not searched for placeholders."""
    said = "# Page\n\nrun\n\n## Two\n\n$one\n"
    assert fill("p", run="run", bars="", one="", two="$one\n") == said


@pytest.mark.usefixtures("template")
def test_a_missing_and_an_unused_placeholder_are_named() -> None:
    """Both, with the file."""
    said = r"p\.md\.template: no value for \['bars'\], no placeholder for \['three'\]"
    with pytest.raises(ValueError, match=said):
        fill("p", run="", one="", two="", three="")


def test_a_peer_that_never_recovers_has_no_number() -> None:
    """The table says never, and the reason stands below it."""
    text = page(ABOUT, [_result("holdfast", 0.25), _result("torchrun", None)])
    row = next(line for line in text.splitlines() if line.startswith("| torch | torchrun, tuned"))
    assert "**never**, 0/1" in row
    assert row.count("–") == 5
    assert "- torchrun, tuned, rank 0: never: every agent has exited" in text


def test_peers_are_compared_with_the_same_restore() -> None:
    """A peer that restores by DCP is held against Holdfast doing so."""
    results = [
        _result("holdfast", 0.2),
        _result("holdfast", 0.4, restore="dcp"),
        _result("dlrover", 4.0, restore="dcp"),
    ]
    text = page(ABOUT, results)
    row = next(line for line in text.splitlines() if line.startswith("| dcp | dlrover"))
    assert row.endswith("| 10.0× (10.0–10.0) |")


def _verdict(text: str, results: list[Result]) -> tuple[bool | None, str]:
    verdict = next(verdict for verdict in judge(results) if verdict.text == text)
    return verdict.kept, verdict.reached


def test_a_promise_in_seconds_is_about_the_median() -> None:
    """One slow trial of three does not break it; two do."""
    text = "node lost → next step"
    fast = [_result("holdfast", s, measured="node-lost") for s in (0.3, 0.4, 5.0)]
    slow = [_result("holdfast", s, measured="node-lost") for s in (0.3, 4.0, 5.0)]
    assert _verdict(text, fast) == (True, "0.40 s")
    assert _verdict(text, slow) == (False, "4.00 s")


def test_a_promised_ratio_is_about_the_fastest_peer() -> None:
    """A slow peer does not hide a fast one."""
    results = [_result("holdfast", 0.3), _result("torchrun", 4.2), _result("dlrover", 9.0)]
    text = "worker killed → next step, beside the fastest peer"
    assert _verdict(text, results) == (False, "14.0× (torchrun tuned)")


def test_a_promise_that_was_not_measured_is_neither_kept_nor_broken() -> None:
    """Every bar says so where its scenario did not run."""
    assert {verdict.kept for verdict in judge([_result("torchrun", 4.0)])} == {None}
    assert len(judge([])) == len(BARS)


def test_a_frozen_agents_worker_must_be_dead_before_the_new_round() -> None:
    """One that outlives the start of the new round breaks the promise, as does one that lives."""
    text = "agent frozen: its worker's life beside the new round"
    base = _result("holdfast", 5.2, measured="agent-frozen")
    early = replace(base, notes={"old worker dead": 4.1, "new round started": 5.1})
    late = replace(base, notes={"old worker dead": 5.3, "new round started": 5.1})
    alive = replace(base, notes={"new round started": 5.1})
    assert _verdict(text, [early])[0] is True
    assert _verdict(text, [late])[0] is False
    assert _verdict(text, [alive])[0] is False


def test_a_fault_that_nobody_noticed_is_named_so() -> None:
    """A job that trains on beside a frozen agent has not recovered."""
    went_on = replace(
        _result("torchrun", None, measured="agent-frozen"), outcome=UNNOTICED, reason="700 steps"
    )
    assert "- torchrun, tuned, rank 0: unnoticed: 700 steps" in page(ABOUT, [went_on])
