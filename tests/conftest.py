"""Settings of every test run: Hypothesis, temporary files, the phases of `make test`.

`make test` runs the fast tests, those with short deadlines, the long ones with those of the cluster
beside them, and those that want to be alone in pytest processes of their own. All but the last
write down their outcome, the last repeats it at its end, so that every failure, every skip with
its reason, and where the time went stand in one place. Fixtures belong into tests/support or beside
their tests.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

# How long an example takes depends on the machine and its other work, so no time limit judges it.
# A failure prints the blob that replays it.
settings.register_profile(
    "holdfast", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")
pytest_plugins = ["house.patience", "house.all_tools", "house.left_behind", "house.time_spent"]
# A shell that runs `make test &` from a script has it ignore SIGINT, `nohup` has it ignore SIGHUP,
# and so would all that tests start and signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The kernel hangs up a process group that no shell waits for, if a member is stopped (by a test)
# when another one ends whose parent has a group of its own. So `make test` builds images in another
# session. What a handler takes is again the default in programs that tests start.
signal.signal(signal.SIGHUP, lambda *_: None)
# A process that does not buffer writes a `print` of two values in three pieces, and the log of
# another thread falls between them. Tests read whole lines.
os.environ.pop("PYTHONUNBUFFERED", None)
# Each of the thousands of processes that tests start would compile the product anew, and each
# phase every test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# The workers of a run must choose the same cases (house.sample), and each run others.
os.environ.setdefault("MATRIX_SEED", str(random.randrange(2**32)))


def pytest_runtest_setup() -> None:
    """Let torch compute with one thread in this process: others wait for each other on busy cores.

    1,500 backward passes of a small model took 129 s with two threads beside the rest of a run, and
    some 30 s with one.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has what is started by tests leave its temporary files where pytest tidies up.

    A process that a test kills cannot remove its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t", numbered=False)))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(autouse=True)
def no_job_of_the_test_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every test begin as a process does: `holdfast.init()` has not been called.

    The process's `Job` counts steps and refuses one that does not grow, so a test that reports
    steps would fail after another one of the same process that reported more.
    """
    if module := sys.modules.get("holdfast.job"):
        monkeypatch.setattr(module, "_job", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two options that `make test` passes."""
    group = parser.getgroup("phases")
    group.addoption("--phase-write", type=Path, help="write this run's outcome there")
    group.addoption(
        "--phase-read",
        type=Path,
        action="append",
        default=[],
        help="repeat the outcome written there",
    )


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Writes this phase down, or repeats the phases before and says where the time went."""
    spent = config.pluginmanager.getplugin("time spent")
    assert spent is not None
    if target := config.getoption("--phase-write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        outcome = _outcome(terminalreporter) | {"spent": spent.phase()}
        target.write_text(json.dumps(outcome), encoding="utf-8")
    if not (sources := config.getoption("--phase-read")):
        return
    phases = {}
    for source in sources:
        outcome = json.loads(source.read_text(encoding="utf-8"))
        phases[source.stem.removesuffix("-phase")] = outcome["spent"]
        terminalreporter.section(f"run before: {source.stem}")
        terminalreporter.line(", ".join(f"{n} {name}" for name, n in outcome["counts"].items()))
        for line in (*outcome["failures"], *outcome["skips"]):
            terminalreporter.line(line)
    terminalreporter.section("where the time went")
    for line in spent.table(phases):
        terminalreporter.line(line)


def _outcome(reporter: TerminalReporter) -> dict[str, object]:
    names = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    counts = {name: len(reporter.stats[name]) for name in names if reporter.stats.get(name)}
    skips = []
    for report in reporter.stats.get("skipped", []):
        path, line, reason = report.longrepr
        skips.append(f"SKIPPED {report.nodeid} ({path}:{line}): {reason}")
    failures = [
        f"{name.upper()} {report.nodeid}"
        for name in ("failed", "error")
        for report in reporter.stats.get(name, [])
    ]
    return {"counts": counts, "failures": failures, "skips": sorted(skips)}
