"""Names of environment variables that nothing reads."""

from __future__ import annotations

import re

import pytest

from holdfast_wire import environment
from house.repository import ROOT

SOURCES = ("operator", "master", "worker_agent", "proto", "cli")


def test_every_variable_that_the_source_names_is_known() -> None:
    """And none that it does not name."""
    named = {
        name
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "variables.py"
        for name in re.findall(r"(?<!_)HOLDFAST_[A-Z][A-Z_]*[A-Z]", path.read_text())
    }
    assert named - {environment.OPERATORS.rstrip("_")} == environment.KNOWN


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HOLDFAST_GRACE_SECOND", "did you mean HOLDFAST_GRACE_SECONDS?"),
        ("HOLDFAST_LOGLEVEL", "did you mean HOLDFAST_LOG_LEVEL?"),
        ("HOLDFAST_SOMETHING_ELSE", "no such variable"),
    ],
)
def test_an_unknown_variable_is_told_with_the_nearest_name(name: str, said: str) -> None:
    """One sentence that names it."""
    (notice,) = environment.unknown([name, "PATH"])
    assert notice.startswith(name)
    assert said in notice


@pytest.mark.parametrize(
    "name",
    [
        *sorted(environment.KNOWN),
        "HOLDFAST_OPERATOR_SERVICE_HOST",
        "HOLDFAST_OPERATOR_SERVICE_PORT",
        "HOLDFAST_OPERATOR_SERVICE_PORT_METRICS",
        "HOLDFAST_OPERATOR_PORT",
        "HOLDFAST_OPERATOR_PORT_443_TCP",
        "HOLDFAST_OPERATOR_PORT_443_TCP_ADDR",
    ],
)
def test_what_others_own_passes(name: str) -> None:
    """Variables of other parts, and those that Kubernetes makes of a Service's name."""
    assert environment.unknown([name]) == ()
