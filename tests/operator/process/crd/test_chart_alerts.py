"""The chart's alerts as Prometheus' own tool reads them, without a cluster."""

from __future__ import annotations

import subprocess
from typing import Final

import pytest

from cluster.prometheus import NOT_BUILT, prometheus_folder
from cluster.release import CHART
from house.repository import ROOT

_PROGRAMS: Final = prometheus_folder()
pytestmark = [pytest.mark.kube, pytest.mark.skipif(_PROGRAMS is None, reason=NOT_BUILT)]
_RULES: Final = CHART / "files" / "alerts.yaml"
_CASES: Final = ROOT / "tests" / "monitoring" / "alerts_test.yaml"


def _promtool(*words: str) -> subprocess.CompletedProcess[str]:
    command = [f"{_PROGRAMS}/promtool", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_rules_are_valid() -> None:
    """`promtool check rules` has nothing against them."""
    done = _promtool("check", "rules", "--lint=all", "--lint-fatal", str(_RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 rules found" in done.stdout


def test_each_alert_waits_fires_and_ends_when_it_should() -> None:
    """`promtool test rules` over series of each situation, and of its opposite."""
    done = _promtool("test", "rules", str(_CASES))
    assert done.returncode == 0, done.stdout + done.stderr
