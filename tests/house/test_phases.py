"""The phases of `make test`: the last repeats what those before failed and skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house.repository import ROOT

TESTS = """
import pytest

def test_passes():
    pass

def test_skips():
    pytest.skip("no such machine here")

@pytest.mark.slow
def test_passes_slowly():
    pass

@pytest.mark.slow
def test_fails_slowly():
    assert False

@pytest.mark.alone
def test_passes_alone():
    pass
"""


def _phase(tree: Path, *arguments: str, code: int = 0) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", tree / "pytest.ini", "--rootdir", tree, *arguments],
        cwd=tree,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_last_phase_lists_failures_and_skips_and_ends_with_pytests_own_line(
    tmp_path: Path,
) -> None:
    """Each of a phase before, a skip with its reason, stands near the end of the whole run."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    settings = f"[pytest]\nmarkers =\n  slow\n  alone\npythonpath = {ROOT / 'tests' / 'support'}\n"
    (tmp_path / "pytest.ini").write_text(settings, encoding="utf-8")
    fast, long = tmp_path / "build" / "phase-fast.json", tmp_path / "build" / "phase-long.json"
    _phase(tmp_path, "-m", "not slow and not alone", f"--phase-write={fast}")
    _phase(tmp_path, "-m", "slow", f"--phase-write={long}", code=1)
    lines = _phase(tmp_path, "-m", "alone", f"--phase-read={fast}", f"--phase-read={long}")
    assert "1 passed, 1 skipped" in lines
    assert "1 passed, 1 failed" in lines
    assert "FAILED test_some.py::test_fails_slowly" in lines
    assert any("test_skips" in line and "no such machine here" in line for line in lines)
    assert "1 passed, 4 deselected" in lines[-1]


@pytest.mark.parametrize(
    ("mark", "folder"),
    [
        ("deadline", "tests/recovery"),
        ("exclusive", "tests/recovery"),
        ("kube", "tests/operator/process"),
        ("node", "tests/operator/process/nodes"),
    ],
)
def test_a_part_that_reads_one_folder_misses_no_test(mark: str, folder: str) -> None:
    """`make test` looks for these marks in one folder each."""
    marked = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if f"pytest.mark.{mark}" in path.read_text(encoding="utf-8")
    ]
    assert marked
    assert [path for path in marked if not path.startswith(folder)] == []
