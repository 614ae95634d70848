"""House rules on modules and classes, by what they are for and not by their size alone."""

from __future__ import annotations

import ast
import functools
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from house.repository import PACKAGES, ROOT, python_files

SMALL = 100
"""Lines under which a module needs a second reader, or a test of its own."""
MAX_MODULES = 20
LONG = 500
BENCH = ROOT / "bench"
TESTS = ROOT / "tests"


@functools.cache
def _source() -> Mapping[str, Path]:
    """Return the hand-written modules of all packages and of the benchmarks, by their name."""
    found = {}
    for path in python_files():
        for root in (*PACKAGES.values(), BENCH):
            if path.is_relative_to(root) and "_pb2" not in path.name:
                parts = path.relative_to(root.parent).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imported(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return names


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    yield from (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def test_a_small_module_has_two_readers_or_a_test_of_its_own() -> None:
    """Else it is a part of its only reader, and one more file to open.

    A module that nothing imports is where a process begins, and so is a `main`.
    """
    readers, tested = Counter[str](), set[str]()
    for path in python_files():
        names = _imported(path) & _source().keys()
        if path.is_relative_to(TESTS):
            tested |= names
        readers.update(name for name in names if _source()[name] != path)
    alone = [
        name
        for name, path in _source().items()
        if not path.name.startswith(("__", "main")) and _lines(path) < SMALL
        if readers[name] == 1 and name not in tested and name.split(".")[0] != "bench"
    ]
    assert alone == []


def test_no_public_class_name_stands_twice_in_a_package() -> None:
    """A name that a reader has met means the same on the next page."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for name, path in _source().items():
        for one in _classes(path):
            if not one.name.startswith("_"):
                found[name.split(".")[0], one.name].append(name)
    assert {key: places for key, places in found.items() if len(places) > 1} == {}


def test_no_folder_holds_more_modules_than_a_reader_takes_in() -> None:
    """More than 20 have no subject in common."""
    sizes = Counter(path.parent for path in _source().values() if path.name != "__init__.py")
    crowded = {str(one.relative_to(ROOT)): size for one, size in sizes.items()}
    assert {one: size for one, size in crowded.items() if size > MAX_MODULES} == {}


def test_no_class_has_a_base_that_is_there_for_its_length_alone() -> None:
    """A base of one class, which nothing else names, is half of that class in another place."""
    places, bases, named = dict[str, str](), Counter[str](), Counter[str]()
    for name, path in _source().items():
        own = {one.name for one in _classes(path)}
        places |= dict.fromkeys(own, name)
        for one in _classes(path):
            bases.update(base.id for base in one.bases if isinstance(base, ast.Name))
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Name):
                named[node.id] += 1
            elif isinstance(node, ast.Attribute):
                named[node.attr] += 1
    lone = [
        f"{places[one]}.{one}"
        for one, count in bases.items()
        if one in places and count == 1 and named[one] == 1 and not one.endswith("Error")
    ]
    assert lone == []


def test_long_files_are_shown() -> None:
    """A file over 500 lines may hold a second subject: a look decides, not this test."""
    lengths = {str(path.relative_to(ROOT)): _lines(path) for path in python_files()}
    for name, lines in sorted(lengths.items()):
        if lines > LONG:
            warnings.warn(f"{name} has {lines} lines: does it hold two subjects?", stacklevel=1)
    assert lengths
