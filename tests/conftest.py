"""What every test run shares: Hypothesis' settings and the two phases of `make test`.

`make test` runs the fast tests side by side and the others one after another, in two pytest
processes. The first writes down its outcome, the second repeats it at its end, so that every
skip with its reason stands in one place. Fixtures belong into tests/support or beside their tests.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

# How long an example takes depends on the machine and its other work, so no time limit judges it.
# A failure prints the blob that replays it.
settings.register_profile(
    "holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two options that `make test` passes."""
    group = parser.getgroup("phases")
    group.addoption("--phase-write", type=Path, help="write this run's counts and skips there")
    group.addoption("--phase-read", type=Path, help="repeat the counts and skips written there")


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Writes this phase down, or repeats the phase before."""
    if target := config.getoption("--phase-write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(_outcome(terminalreporter)), encoding="utf-8")
    if source := config.getoption("--phase-read"):
        outcome = json.loads(source.read_text(encoding="utf-8"))
        terminalreporter.section("the fast tests, run before")
        terminalreporter.line(", ".join(f"{n} {name}" for name, n in outcome["counts"].items()))
        for line in outcome["skips"]:
            terminalreporter.line(line)


def _outcome(reporter: TerminalReporter) -> dict[str, object]:
    names = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    counts = {name: len(reporter.stats[name]) for name in names if reporter.stats.get(name)}
    skips = []
    for report in reporter.stats.get("skipped", []):
        path, line, reason = report.longrepr
        skips.append(f"SKIPPED {report.nodeid} ({path}:{line}): {reason}")
    return {"counts": counts, "skips": sorted(skips)}
