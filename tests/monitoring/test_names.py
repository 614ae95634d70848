"""Queries of the dashboard and of alerts against the families that are really served."""

from __future__ import annotations

import re
from typing import Final

import pytest

from cluster import runbook
from cluster.prometheus import alerts, panels
from metrics import job_families, operator_families

_SELECTOR: Final = re.compile(r"\b(holdfast_\w+)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*=\s*"([^"$]+)"')
_LABELS: Final = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_OF_TARGET: Final = {"pod", "namespace"}
"""Labels that a scraper adds."""
_SET_LATER: Final = {"outcome", "phase", "reason", "code", "method"}
"""Labels whose values the operator does not know before they come."""


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


@pytest.mark.parametrize("query", _queries().values(), ids=_queries().keys())
def test_every_series_of_a_query_is_served(
    query: str, served: dict[str, list[dict[str, str]]]
) -> None:
    """A name, a label or a label's value that nobody serves would never give data."""
    selectors = _SELECTOR.findall(query)
    assert selectors
    for name, matchers in selectors:
        assert name in served, name
        for label, value in _MATCHER.findall(matchers):
            known = {one.get(label) for one in served[name]}
            assert value in known or (label in _SET_LATER and "" in known), (name, label, value)
    labels = {one for text in _LABELS.findall(query) for one in text.split(", ")}
    given = {label for name, _ in selectors for one in served[name] for label in one}
    assert labels <= given | _OF_TARGET


def test_the_check_finds_a_name_and_a_value_that_nobody_serves(
    served: dict[str, list[dict[str, str]]],
) -> None:
    """It would pass for nothing otherwise."""
    for query in (
        "holdfast_job_stepp",
        'holdfast_job_checkpoint_saves_total{outcome="lost"}',
        "sum by (rank) (holdfast_job_step)",
    ):
        with pytest.raises(AssertionError):
            test_every_series_of_a_query_is_served(query, served)


def test_each_alert_has_a_section_of_the_runbook_with_commands() -> None:
    """Every command there is a point, which a test runs on a real job."""
    book = runbook.points()
    assert list(book) == list(alerts())
    assert all(book.values())
    assert runbook.loose_commands() == []
