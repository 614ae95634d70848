"""Limits of tests and of waits grow with the slowness of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from house.repository import ROOT

pytestmark = pytest.mark.slow

SUPPORT = str(ROOT / "tests" / "support")
TESTS = """
import time
import pytest

@pytest.mark.timeout(1)
def test_has_a_limit_of_its_own():
    time.sleep(1.5)

def test_has_the_usual_one():
    time.sleep(1.5)
"""


@pytest.mark.parametrize(("factor", "passed"), [("1", 0), ("20", 2)])
def test_a_slow_machine_has_more_time(tmp_path: Path, factor: str, passed: int) -> None:
    """For tests with a limit of their own, and for those with the usual one."""
    (tmp_path / "test_slowly.py").write_text(TESTS)
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\ntimeout = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "house.patience", "-c", settings],
        env={**os.environ, "TESTS_PATIENCE": factor, "PYTHONPATH": SUPPORT},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = f"{passed} passed" if passed else "2 failed"
    assert found in done.stdout, done.stdout


def test_no_machine_has_less_than_twice_the_time() -> None:
    """Its speed may halve in the middle of a run; it is measured where nobody says it."""
    environ = {name: value for name, value in os.environ.items() if name != "TESTS_PATIENCE"}
    code = "from house.patience import patience; print(patience())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, "PYTHONPATH": SUPPORT},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 2.0 <= float(done.stdout) < 50.0
