"""House rules that no linter knows: sizes, docstrings, and nothing that belongs to one machine."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from house.repository import PACKAGES, ROOT, python_files, tracked_files

MAX_MODULES = 25
SHARED = ROOT / "tests" / "support"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tests_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node


def test_no_folder_of_shared_tests_holds_more_modules_than_the_limit() -> None:
    """A folder with more than 25 modules has no subject."""
    roots = (SHARED, ROOT / "tests" / "testbed")
    shared = [path for path in python_files() if any(map(path.is_relative_to, roots))]
    sizes = Counter(_name(path.parent) for path in shared)
    assert len(sizes) > 10
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES} == {}


def test_the_page_of_shared_tests_names_every_module() -> None:
    """A module that is not on the page is found by nobody who does not know its name."""
    page = (SHARED / "README.md").read_text(encoding="utf-8")
    shared = [path.relative_to(SHARED) for path in python_files() if path.is_relative_to(SHARED)]
    unnamed = [
        str(path)
        for path in shared
        if path.parts[0] not in {"simulation", "clock_jumps", "next_release"}
        and not re.search(rf"`{path.stem}`", page)
    ]
    assert len(shared) > 40
    assert unnamed == []


def test_every_module_says_what_belongs_in_it_and_every_test_its_promise() -> None:
    """Each module opens with a docstring, and so does each test function."""
    missing = []
    for path in python_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        missing += [] if ast.get_docstring(tree) else [_name(path)]
        tests = _tests_in(tree) if path.is_relative_to(ROOT / "tests") else ()
        missing += [f"{_name(path)}:{one.lineno}" for one in tests if not ast.get_docstring(one)]
    assert missing == []


def test_nothing_follows_the_start_of_a_program() -> None:
    """A function below `if __name__ == "__main__":` is not there yet when the program runs."""
    late = [
        f"{_name(path)}:{after.lineno}"
        for path in python_files()
        for start, after in pairwise(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(start, ast.If) and ast.unparse(start.test) == "__name__ == '__main__'"
    ]
    assert late == []


def test_no_test_folder_is_a_package() -> None:
    """An __init__.py in tests would let a folder there shadow a module of the same name."""
    packages = [path for path in tracked_files() if path.name == "__init__.py"]
    assert [_name(path) for path in packages if path.is_relative_to(ROOT / "tests")] == []


def test_no_component_folder_is_a_package() -> None:
    """An operator/__init__.py would hide the standard library's operator from python -m."""
    folders = {root.parent for root in PACKAGES.values()}
    assert [_name(folder) for folder in folders if (folder / "__init__.py").exists()] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    """A module is named for what it holds."""
    empty = {"utils", "util", "common", "manager", "base", "helpers", "misc"}
    assert [_name(path) for path in tracked_files() if path.stem in empty] == []


def test_the_coverage_gate_counts_files_that_are_there() -> None:
    """A pattern that matches nothing would leave decisions out of the gate, silently."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["coverage"]["report"]["include"]
    names = [_name(path) for path in python_files()]
    assert [one for one in patterns if not fnmatch.filter(names, one)] == []


# Put together here, so that this file does not name them itself.
FOREIGN = [
    ("files.pythonhosted", "org"),
    ("pypi.org/", "simple"),
    ("registry.npmjs", "org"),
    ("proxy.golang", "org"),
    ("sum.golang", "org"),
]


@pytest.mark.parametrize("parts", [pytest.param(parts, id=parts[0]) for parts in FOREIGN])
def test_no_file_names_a_registry(parts: tuple[str, str]) -> None:
    """No file carries a registry's address. The machine chooses where packages come from."""
    separator = "" if parts[0].endswith("/") else "."
    assert _files_with(separator.join(parts)) == []


# With the space that git writes: a text may underline with the bare signs.
MERGE_MARKS = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)


def test_no_file_holds_the_marks_of_a_merge() -> None:
    """A conflict that was committed unsolved is found here, and not by a reader of the page."""
    marked = [path for path in tracked_files() if MERGE_MARKS.search(path.read_bytes())]
    assert [_name(path) for path in marked] == []


def test_no_file_names_a_place_on_this_machine() -> None:
    """The path of this checkout, or of the user's home, works for nobody else."""
    places = [str(ROOT)]
    if len(home := os.environ.get("HOME", "").rstrip("/")) > len("/root"):
        places.append(home + "/")
    assert {place: found for place in places if (found := _files_with(place))} == {}


def _files_with(text: str) -> list[str]:
    wanted = text.encode()
    return [_name(path) for path in tracked_files() if wanted in path.read_bytes()]
