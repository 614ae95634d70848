"""Where CI says that all tools are there, a test whose tool is not built fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import prometheus, queue
from house.all_tools import NOT_BUILT, VARIABLE
from house.repository import ROOT

_TESTS = f"""
import pytest

@pytest.fixture(scope="module")
def running():
    pytest.skip({queue.NOT_BUILT!r})

def test_in_a_fixture(running):
    pass

@pytest.mark.skipif(True, reason={prometheus.NOT_BUILT!r})
def test_by_a_mark():
    pass

def test_other_reason():
    pytest.skip("pods as processes need root")
"""


def _outcome(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> tuple[int, str]:
    (folder / "test_tools.py").write_text(_TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    plugins = ("-p", "house.all_tools", "-p", "no:cacheprovider")
    words = [sys.executable, "-m", "pytest", "-rs", *plugins, "-c", "pytest.ini", "."]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_skip_because_a_tool_is_not_built_is_a_failure_where_all_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a fixture or a mark skips; what the machine lacks stays a skip."""
    code, said = _outcome(tmp_path, monkeypatch, "1")
    assert code == 1, said
    assert "1 skipped, 2 errors" in said
    assert f"{VARIABLE} is set: Skipped: {queue.NOT_BUILT}" in said


@pytest.mark.parametrize("value", [None, ""])
def test_people_s_runs_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Who changes something else needs no Kueue."""
    code, said = _outcome(tmp_path, monkeypatch, value)
    assert code == 0, said
    assert "3 skipped" in said


def test_the_tests_load_it() -> None:
    """conftest.py names the plugin."""
    assert '"house.all_tools"' in (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["--nodes", "--queue", "--metrics"])
def test_the_script_says_it_in_the_words_that_count(kind: str, tmp_path: Path) -> None:
    """With an empty cache; the reason for skipping tests on real nodes is what it prints."""
    words = [str(ROOT / "scripts" / "cluster_tools.sh"), kind, "--no-build"]
    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert NOT_BUILT.search(done.stderr)
