"""The phases of `make test`: the last repeats what those before failed and skipped."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from house.repository import ROOT

pytestmark = pytest.mark.slow

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


SPENDS = """
import subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < 1.2: pass"

def test_works():
    began = time.process_time()
    while time.process_time() < began + 1.2: pass

def test_starts():
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True)

def test_waits():
    time.sleep(1.2)
"""


def test_the_last_phase_repeats_the_outcomes_and_says_where_the_time_went(tmp_path: Path) -> None:
    """Each failure, each skip with its reason; time by cause; and how many tests were left out."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    left_out = "import pytest\n\n@pytest.mark.extended\ndef test_left_out():\n    pass\n"
    for name, tests in (("some", TESTS), ("spends", SPENDS), ("left_out", left_out)):
        (tmp_path / f"test_{name}.py").write_text(tests, encoding="utf-8")
    marks = "slow\n  alone\n  extended"
    settings = f"[pytest]\nmarkers =\n  {marks}\npythonpath = {ROOT / 'tests' / 'support'}\n"
    (tmp_path / "pytest.ini").write_text(settings, encoding="utf-8")
    fast, long = tmp_path / "build" / "fast-phase.json", tmp_path / "build" / "long-phase.json"
    usual = "not extended and not slow and not alone"
    _phase(tmp_path, "-m", usual, "-n", "2", f"--phase-write={fast}")
    _phase(tmp_path, "-m", "slow", "test_some.py", f"--phase-write={long}", code=1)
    lines = _phase(
        tmp_path, "-m", "alone", "test_some.py", f"--phase-read={fast}", f"--phase-read={long}"
    )
    assert "4 passed, 1 skipped" in lines
    assert "1 passed, 1 failed" in lines
    assert "FAILED test_some.py::test_fails_slowly" in lines
    assert any("test_skips" in line and "no such machine here" in line for line in lines)
    assert "1 passed, 4 deselected" in lines[-1]
    (causes,) = [line.split()[-3:] for line in lines if line.startswith("fast ")]
    for cause, seconds in zip(("tests", "processes", "waiting"), causes, strict=True):
        assert int(seconds) >= 1, (cause, lines)
    assert any(line.endswith("test_spends.py") for line in lines)
    assert "not run: 1 tests that only `make test-all` runs" in lines


def _calls_of_extended(path: Path) -> Iterator[ast.Call]:
    """Yield each `pytest.mark.extended(...)` of a file; fail at one without arguments."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    named = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == "extended"]
    calls = [n for n in nodes if isinstance(n, ast.Call) and n.func in named]
    assert len(calls) == len(named), f"{path.name}: one has no reason"
    yield from calls


def _stands_in_make_test(held: str) -> bool:
    """Tell whether a test of this name (`file::test`) exists, without the mark."""
    name, _, test = held.partition("::")
    path = ROOT / "tests" / name
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test:
            return not any("extended(" in ast.unparse(one) for one in node.decorator_list)
    return False


def _marked(mark: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"pytest.mark.{mark}" in path.read_text(encoding="utf-8") and path != Path(__file__)
    ]


def test_what_left_make_test_names_the_tests_that_hold_its_fault() -> None:
    """`extended(reason, held_by=[...])`: tests of `make test` that find what this one finds."""
    paths = _marked("extended")
    assert paths
    for path in paths:
        for call in _calls_of_extended(path):
            (reason,) = call.args
            assert ast.literal_eval(reason), path.name
            (held_by,) = call.keywords
            assert held_by.arg == "held_by", path.name
            names = ast.literal_eval(held_by.value)
            assert names, path.name
            assert [name for name in names if not _stands_in_make_test(name)] == [], path.name


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
    marked = [path.relative_to(ROOT).as_posix() for path in _marked(mark)]
    assert marked
    assert [path for path in marked if not path.startswith(folder)] == []


def test_a_part_that_leaves_folders_out_misses_no_test() -> None:
    """The long tests of the folders that it does not read are the cluster's, another part's."""
    (line,) = re.findall("^SHORT := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    unread = [f"tests/{folder}/" for folder in line.split()]
    assert [folder for folder in unread if not (ROOT / folder).is_dir()] == []
    others = {*_marked("kube"), *_marked("node")}
    long = {*_marked("train"), *_marked("slow")} - others
    found = [path.relative_to(ROOT).as_posix() for path in long]
    assert [path for path in found if path.startswith(tuple(unread))] == []
