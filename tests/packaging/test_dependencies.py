"""Imports of a part, also inside a function, are declared by its extra.

A fresh environment shows what a module imports with itself; what it imports later, when a user
is waiting, only its source shows.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from house.repository import PACKAGES, ROOT, tracked_files

EXTRA_OF = {
    "holdfast_wire": None,
    "holdfast_operator": "operator",
    "holdfast_master": "master",
    "holdfast_agent": "agent",
    "holdfast_cli": "cli",
    "holdfast": "train",
}
# torch is the user's own build, in the worker's environment; see [agent] in pyproject.toml. A
# framework is there where its integration is imported, [traces] where a variable asks for spans.
BROUGHT_BY_THE_USER = {
    "holdfast_master": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"},
    "holdfast_agent": {"torch", "numpy"},
    "holdfast": {"deepspeed", "megatron-core"},
}


def _imports(package: str) -> Iterator[str]:
    for path in tracked_files():
        if path.is_relative_to(PACKAGES[package]) and path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module


def _declared(extra: str | None) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    lines = [*project["dependencies"], *(extras[extra] if extra else [])]
    return {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines}


@cache
def _providers() -> Mapping[str, list[str]]:
    return packages_distributions()


def _distributions(module: str) -> set[str]:
    """Names those that provide a module; several share `google`, so its submodules are asked."""
    known = {"google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos"}
    for prefix, name in known.items():
        if module == prefix or module.startswith(prefix + "."):
            return {name}
    names = _providers().get(module.partition(".")[0], [])
    return {name.lower().replace("_", "-") for name in names}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_import_is_declared(package: str) -> None:
    """Each library that a package imports stands in its extra, or in what everybody gets."""
    allowed = _declared(EXTRA_OF[package]) | BROUGHT_BY_THE_USER.get(package, set())
    foreign = {
        module
        for module in _imports(package)
        if module.partition(".")[0] not in sys.stdlib_module_names | PACKAGES.keys()
    }
    assert [module for module in sorted(foreign) if not _distributions(module) & allowed] == []


def test_the_command_line_brings_no_library_of_the_operators() -> None:
    """Kubernetes alone is 75 MB, on every laptop."""
    assert _declared("cli") & {"kopf", "kubernetes", "prometheus-client"} == set()
