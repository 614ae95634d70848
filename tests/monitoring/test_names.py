"""Queries of the dashboard and of alerts against the families that are really served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from cluster import runbook
from cluster.prometheus import alerts, panels
from holdfast_operator import main
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EndReason, PhaseReason
from house.repository import ROOT
from metrics import job_families, operator_families

_SELECTOR: Final = re.compile(r"\b(holdfast_\w+)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_LABELS: Final = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_OF_TARGET: Final = {"pod", "namespace"}
"""Labels that a scraper adds."""
_OF_A_USER: Final = {"namespace", "job", "pod", "node", "uid"}
"""Labels whose values nobody knows before they come."""
_LOOK: Final = re.compile(r'\bLOOKS\.labels\("(\w+)"\)')
_CASES: Final = ROOT / "tests" / "monitoring" / "alerts_test.yaml"


def _words(*of: type) -> set[str | None]:
    """Return the constants of classes of reasons."""
    return {value for one in of for name, value in vars(one).items() if name.isupper()}


_SET_LATER: Final[dict[tuple[str, str], set[str | None]]] = {
    ("holdfast_job_info", "phase"): {one.name.lower() for one in wire.JobPhase if one.value},
    ("holdfast_job_info", "reason"): _words(PhaseReason, EndReason),
    ("holdfast_operator_failed_job", "reason"): _words(EndReason),
    ("holdfast_operator_looks_total", "outcome"): set(
        _LOOK.findall(Path(main.__file__).read_text(encoding="utf-8"))
    ),
}
"""Values by series and label, where no sample has them before they come."""


@pytest.fixture(scope="module")
def served() -> dict[str, list[dict[str, str]]]:
    """The labels of every series by the name of its samples."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in (*job_families(), *operator_families()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
        if family.type == "histogram":
            found.setdefault(f"{family.name}_bucket", []).append({"le": "1"})
        if family.type == "counter":
            found.setdefault(f"{family.name}_total", found.get(family.name, []))
    return found


def _queries() -> dict[str, str]:
    return {**dict(panels()), **alerts()}


def _check_values(query: str, served: dict[str, list[dict[str, str]]]) -> list[str]:
    """Fail where a query names a series or a value that nobody serves; return the series.

    Each alternative of a regular expression has to fit a value.
    """
    selectors = _SELECTOR.findall(query)
    assert selectors
    for name, matchers in selectors:
        assert name in served, name
        for label, how, wanted in _MATCHER.findall(matchers):
            if label in _OF_A_USER:
                continue
            known = {one.get(label) for one in served[name]}
            assert known != {None}, (name, label)
            known = _SET_LATER.get((name, label)) or known
            for one in wanted.split("|") if "~" in how else [re.escape(wanted)]:
                fitting = [value for value in known if value and re.fullmatch(one, value)]
                assert fitting, (name, label, one, known)
    return [name for name, _ in selectors]


@pytest.mark.parametrize("query", _queries().values(), ids=_queries().keys())
def test_every_series_of_a_query_is_served(
    query: str, served: dict[str, list[dict[str, str]]]
) -> None:
    """A name, a label or a label's value that nobody serves would never give data."""
    names = _check_values(query, served)
    labels = {one for text in _LABELS.findall(query) for one in text.split(", ")}
    given = {label for name in names for one in served[name] for label in one}
    assert labels <= given | _OF_TARGET


def test_every_series_of_the_alerts_own_tests_is_served(
    served: dict[str, list[dict[str, str]]],
) -> None:
    """An alert that is tested over a phase that no job has would be tested for nothing."""
    cases = yaml.safe_load(_CASES.read_text(encoding="utf-8"))["tests"]
    series = [one["series"] for case in cases for one in case["input_series"]]
    assert len(series) > 20
    for one in series:
        _check_values(one, served)


@pytest.mark.parametrize(
    "query",
    [
        "holdfast_job_stepp",
        'holdfast_job_checkpoint_saves_total{outcome="lost"}',
        'holdfast_job_checkpoint_saves_total{outcome!="lost"}',
        "sum by (rank) (holdfast_job_step)",
        'holdfast_job_info{phase="trains"}',
        'holdfast_job_info{phase!~"suspended|succeeded|failed|stops"}',
        'holdfast_job_info{state!~"suspended"}',
        'holdfast_operator_failed_job{reason!~"StopedBy.*"}',
        'holdfast_operator_looks_total{outcome=~"failed|denied"}',
    ],
)
def test_the_check_finds_a_name_and_a_value_that_nobody_serves(
    query: str, served: dict[str, list[dict[str, str]]]
) -> None:
    """It would pass for nothing otherwise."""
    with pytest.raises(AssertionError):
        test_every_series_of_a_query_is_served(query, served)


def test_each_alert_has_a_section_of_the_runbook_with_commands() -> None:
    """Every command there is a point, which a test runs on a real job."""
    book = runbook.points()
    assert list(book) == list(alerts())
    assert all(book.values())
    assert runbook.loose_commands() == []
