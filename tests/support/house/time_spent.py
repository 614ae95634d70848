"""A pytest plugin: where the time of `make test` goes, by phase, by file and by cause.

Each report carries the CPU seconds that its part of a test took. A process that a test starts
counts once the test has reaped it, with those that it has reaped itself. One whose parent was
killed counts nowhere: so the table says beside it how busy the whole machine was meanwhile.
Belongs here: how long tests take. Not: how long the product takes; that is the benches'.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pytest

from house import forks

FILES = 12
"""Files that a phase names; the others are short."""
CAUSES = ("fixtures", "tests", "processes", "waiting")
"""CPU of setting up and taking down; CPU of tests in their own process; CPU of processes that tests
started; what is left of the wall time: for an event, for a peer, for a core."""


class Phase(TypedDict):
    """Seconds of one pytest run."""

    wall: float
    busy: float
    """Core seconds that the whole machine worked for meanwhile."""
    cores: int
    elsewhere: int
    """Tests that only `make test-all` runs."""
    files: dict[str, dict[str, float]]
    """By file, by cause."""


@dataclass(frozen=True, slots=True)
class _Clocks:
    wall: float = field(default_factory=time.monotonic)
    own: float = field(default_factory=lambda: _cpu(resource.RUSAGE_SELF))
    reaped: float = field(default_factory=lambda: _cpu(resource.RUSAGE_CHILDREN) + forks.cpu())
    busy: float = field(default_factory=lambda: _busy(Path("/proc/stat").read_text("ascii")))


class TimeSpent:
    """The seconds of one pytest run; under xdist its workers measure and its controller counts."""

    def __init__(self) -> None:
        """Begin now."""
        self.begun = _Clocks()
        self.last = self.begun
        self.files: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(CAUSES, 0.0))
        self.elsewhere = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, pytest.TestReport]:
        """Note the CPU of a test's setup, call or teardown: it has just ended."""
        report: pytest.TestReport = yield
        now = _Clocks()
        report.__dict__["cpu"] = (now.own - self.last.own, now.reaped - self.last.reaped)
        self.last = now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a part of a test in the process that prints; a crashed worker's CPU is unknown."""
        own, reaped = getattr(report, "cpu", (0.0, 0.0))
        spent = self.files[report.nodeid.partition("::")[0]]
        if report.when == "call":
            spent["tests"] += own
            spent["processes"] += reaped
        else:
            spent["fixtures"] += own + reaped
        spent["waiting"] += max(0.0, report.duration - own - reaped)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count the tests that only `make test-all` runs."""
        self.elsewhere += sum(item.get_closest_marker("extended") is not None for item in items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Pass that number on: under xdist only the workers collect."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["elsewhere"] = self.elsewhere

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take it over: every worker collects the same tests."""
        self.elsewhere = max(self.elsewhere, getattr(node, "workeroutput", {}).get("elsewhere", 0))

    def phase(self) -> Phase:
        """Return the run until now."""
        now = _Clocks()
        return Phase(
            wall=now.wall - self.begun.wall,
            busy=now.busy - self.begun.busy,
            cores=os.cpu_count() or 1,
            elsewhere=self.elsewhere,
            files=dict(self.files),
        )

    def table(self, before: Mapping[str, Phase]) -> list[str]:
        """Return lines that say where the time of this run and of those before went."""
        return _table({**before, "this run": self.phase()})


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count; conftest.py asks for the plugin by its name."""
    config.pluginmanager.register(TimeSpent(), "time spent")


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _busy(stat: str) -> float:
    user, nice, system, _idle, _iowait, irq, softirq = map(int, stat.split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _table(phases: Mapping[str, Phase]) -> list[str]:
    lines = [_line("seconds", "wall", "cores", CAUSES)]
    for name, phase in phases.items():
        files = phase["files"].values()
        causes = [f"{sum(spent[cause] for spent in files):.0f}" for cause in CAUSES]
        cores = f"{phase['busy'] / phase['wall']:.1f} of {phase['cores']}"
        lines.append(_line(name, f"{phase['wall']:.0f}", cores, causes))
    for name, phase in phases.items():
        lines.append(f"the longest files of {name}:")
        longest = sorted(phase["files"].items(), key=lambda one: -sum(one[1].values()))[:FILES]
        for path, spent in longest:
            causes = [f"{spent[cause]:.0f}" for cause in CAUSES]
            lines.append(_line("", f"{sum(spent.values()):.0f}", "", causes) + "  " + path)
    if elsewhere := max((phase["elsewhere"] for phase in phases.values()), default=0):
        lines.append(f"not run: {elsewhere} tests that only `make test-all` runs")
    return lines


def _line(name: str, wall: str, cores: str, causes: Iterable[str]) -> str:
    return f"{name:8}{wall:>6}{cores:>10}" + "".join(f"{cause:>11}" for cause in causes)
