"""The list of planted faults is true without a run of it, and a trial judges as it says."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from house.repository import ROOT
from planted_faults.catalogue import LEAST, Fault, problems, read
from planted_faults.trial import cases, plant, tried, verdict

SOURCE = "def most(values):\n    return max(values)\n"
TESTS = """
import pytest
from part import most

def test_most():
    assert most([1, 2]) == 2

def test_nothing():
    assert most([1]) == 1

@pytest.mark.extended("long", held_by=["test_most"])
def test_elsewhere():
    assert most([1, 2]) == 2
"""
FAULT = Fault(
    name="least for most",
    component="trainer",
    what="The least value is taken.",
    file="operator/part.py",
    right="max(",
    wrong="min(",
    caught_by=("tests/test_part.py::test_most",),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one part and its tests."""
    for name, text in (("operator/part.py", SOURCE), ("tests/test_part.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    settings = "[pytest]\nmarkers =\n  extended: only some runs\n"
    (tmp_path / "pytest.ini").write_text(settings, encoding="utf-8")
    return tmp_path


def test_every_planted_fault_has_its_place_and_tests_of_make_test() -> None:
    """Text that is not there any more, or a test that left, would let the list say nothing."""
    faults = read()
    assert list(problems(faults, ROOT)) == []
    assert len(faults) >= LEAST


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"right": "min("}, "`right` stands there 0 times, not once"),
        ({"right": "values"}, "`right` stands there 2 times, not once"),
        ({"wrong": "max("}, "`wrong` is `right`"),
        ({"file": "operator/gone.py"}, "No such file"),
        ({"component": "brain"}, "'brain' is no component"),
        ({"caught_by": ()}, "no test catches it"),
        ({"caught_by": ("tests/test_part.py::test_gone",)}, "there is no test_gone"),
        ({"caught_by": ("tests/test_gone.py::test_most",)}, "No such file"),
        ({"caught_by": ("tests/test_part.py::test_elsewhere",)}, "`make test-all` only"),
    ],
)
def test_what_is_wrong_with_a_fault_is_told(
    tree: Path, change: dict[str, object], said: str
) -> None:
    """By its name, with the reason."""
    fault = dataclasses.replace(FAULT, **change)  # type: ignore[arg-type]
    told = [line for line in problems([FAULT, fault], tree) if line.startswith("least for most: ")]
    assert any(said in line for line in told), told


def test_the_list_lacks_no_component(tree: Path) -> None:
    """A component without a fault is told, and a name that stands twice."""
    told = list(problems([FAULT, FAULT], tree))
    assert "CLI: no fault is planted there" in told
    assert "trainer: no fault is planted there" not in told
    assert "least for most: 2 faults have this name" in told


REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_part" name="test_fails" time="1.5">
  <failure message="AssertionError: 1 == 2&#10;more"/></testcase>
<testcase classname="tests.test_part.TestOne" name="test_inside[a::b]" time="0.5">
  <failure message="Failed: Timeout (&gt;120s)"/></testcase>
<testcase classname="tests.test_part.TestOne" name="test_inside[c]" time="0.5"/>
<testcase classname="tests.test_part" name="test_passes" time="0"/>
<testcase classname="tests.test_part" name="test_skips" time="0">
  <skipped message="no root"/></testcase>
<testcase classname="tests.test_part" name="test_errs" time="0">
  <error message="failed on setup"/></testcase>
<testcase classname="tests.test_part" name="test_imports" time="0">
  <failure message="NameError: name 'nobody' is not defined"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("test", "ok", "said"),
    [
        ("test_fails", True, "AssertionError: 1 == 2"),
        ("TestOne::test_inside", True, "Failed: Timeout (>120s)"),
        ("TestOne::test_inside[a::b]", True, "Failed: Timeout (>120s)"),
        ("TestOne::test_inside[c]", False, "passes with the fault"),
        ("test_passes", False, "passes with the fault"),
        ("test_skips", False, "skipped: no root"),
        ("test_errs", False, "error: failed on setup"),
        ("test_imports", False, "fails for another reason: NameError: name 'nobody' is not"),
        ("test_gone", False, "did not run"),
    ],
)
def test_only_a_failure_of_the_test_itself_counts(test: str, ok: bool, said: str) -> None:  # noqa: FBT001
    """A test that passes, is skipped, or cannot run at all has caught nothing."""
    name = f"tests/test_part.py::{test}"
    found = verdict(name, cases(REPORT, [name])[name])
    assert (found.ok, found.said[: len(said)]) == (ok, said)


def test_a_fault_is_planted_into_a_copy_and_runs_its_tests_there(tree: Path) -> None:
    """One test sees the fault, another does not; the tree itself stays whole."""
    tests = ("tests/test_part.py::test_most", "tests/test_part.py::test_nothing")
    fault = dataclasses.replace(FAULT, caught_by=tests)
    found = tried(fault, tree, Path(sys.prefix))
    assert [(one.test, one.ok) for one in found] == [(tests[0], True), (tests[1], False)]
    assert found[0].said.startswith("assert 1 == 2")
    assert found[1].said == "passes with the fault"
    assert (tree / fault.file).read_text(encoding="utf-8") == SOURCE


def test_a_text_that_cannot_run_is_not_planted(tree: Path) -> None:
    """Every test would fail with it, and none for the fault."""
    with pytest.raises(ValueError, match="it is no Python"):
        plant(dataclasses.replace(FAULT, wrong="max(("), tree)
