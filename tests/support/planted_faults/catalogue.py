"""The list of planted faults: small, realistic mistakes, each with the tests that catch it by name.

`faults/*.toml` hold the list, a file for each component. Belongs here: reading the list, and what
must be true of it without a run. Not: planting a fault and running its tests (`trial`).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "faults"
COMPONENTS: Final = (
    "agent",
    "zygote",
    "flash server",
    "trainer",
    "formats",
    "SDK",
    "local SGD",
    "replicas",
    "integrations",
    "health",
    "master",
    "journal",
    "wire",
    "operator plan",
    "operator status",
    "operator spec",
    "operator pods",
    "operator shell",
    "CLI",
)
"""Each of them has a fault at least."""
LEAST: Final = 30
_EXTENDED: Final = "mark.extended"
_TestFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in one file."""

    name: str
    component: str
    what: str
    """As a user would notice it."""
    file: str
    """From the root of the tree."""
    right: str
    """Text that stands exactly once in the file."""
    wrong: str
    """Text that replaces it."""
    caught_by: tuple[str, ...]
    """Ids of tests as pytest takes them. Each of them fails while the fault is planted."""


def read(folder: Path = FOLDER) -> tuple[Fault, ...]:
    """Return all faults, by file and in its order."""
    return tuple(
        Fault(**{**fields, "caught_by": tuple(fields["caught_by"])})
        for path in sorted(folder.glob("*.toml"))
        for fields in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    )


def planted(fault: Fault, text: str) -> str:
    """Return a file's text with the fault; raises `ValueError` where it cannot be planted."""
    if (times := text.count(fault.right)) != 1:
        raise ValueError(f"{fault.file}: `right` stands there {times} times, not once")
    changed = text.replace(fault.right, fault.wrong)
    if changed == text:
        raise ValueError(f"{fault.file}: `wrong` is `right`")
    return changed


def problems(faults: Sequence[Fault], root: Path) -> Iterator[str]:
    """Yield what is not true of a list in a tree: one sentence each, with the fault's name."""
    for name, times in Counter(fault.name for fault in faults).items():
        if times > 1:
            yield f"{name}: {times} faults have this name"
    for component in COMPONENTS:
        if all(fault.component != component for fault in faults):
            yield f"{component}: no fault is planted there"
    for fault in faults:
        for said in _of_one(fault, root):
            yield f"{fault.name}: {said}"


def _of_one(fault: Fault, root: Path) -> Iterator[str]:
    if fault.component not in COMPONENTS:
        yield f"{fault.component!r} is no component: {', '.join(COMPONENTS)}"
    if not fault.caught_by:
        yield "no test catches it"
    try:
        planted(fault, _text(root / fault.file))
    except (OSError, ValueError) as error:
        yield str(error)
    for test in fault.caught_by:
        yield from _of_a_test(test, root)


def _of_a_test(test: str, root: Path) -> Iterator[str]:
    name, *inside = test.partition("[")[0].split("::")
    try:
        text = _text(root / name)
    except OSError as error:
        yield str(error)
        return
    for part in inside:
        if not re.search(rf"^ *(?:async def|def|class) {re.escape(part)}\b", text, re.MULTILINE):
            yield f"{test}: there is no {part}"
            return
    if _EXTENDED in text and _is_extended(ast.parse(text), inside):
        yield f"{test} runs in `make test-all` only"


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _is_extended(tree: ast.Module, inside: Sequence[str]) -> bool:
    """Tell whether a test, its class, or its module has the mark, by itself or by another name."""
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and _EXTENDED in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "pytestmark" in names:
        return True
    body: Sequence[ast.stmt] = tree.body
    for part in inside:
        for node in body:
            if isinstance(node, ast.ClassDef | _TestFunction) and node.name == part:
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                if any(_EXTENDED in mark or mark in names for mark in marks):
                    return True
                body = node.body
                break
    return False
