"""Fresh environments and interpreters: made by uv, asked what importing Holdfast's parts does."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from house.patience import patience

UV = Path(sys.executable).parent / "uv"

# Runs in the other interpreter: imports every module of the packages named, then says which
# failed, which were imported, and which heavy libraries came along.
_PROBE = """
import importlib, json, pkgutil, sys, traceback
failures, modules = {}, {}
def load(name):
    try:
        module = importlib.import_module(name)
    except BaseException:
        failures[name] = traceback.format_exc()
        return
    modules[name] = module.__file__
    for info in pkgutil.iter_modules(getattr(module, "__path__", []), name + "."):
        if not info.name.endswith(".__main__"):
            load(info.name)
for package in sys.argv[1:]:
    load(package)
heavy = [name for name in ("torch", "numpy", "kopf", "kubernetes") if name in sys.modules]
print(json.dumps({"failures": failures, "modules": modules, "heavy": heavy}))
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """An interpreter's report after the import of all modules of some packages."""

    failures: dict[str, str]
    """By module: the traceback of its import."""
    modules: dict[str, str]
    """By module that was imported: its file."""
    heavy: list[str]
    """Those of torch, numpy, kopf and kubernetes that came along."""


def import_all(python: Path | str, *packages: str) -> Imported:
    """Imports every module of `packages`, `__main__` aside, in an isolated interpreter."""
    done = subprocess.run(
        [python, "-I", "-c", _PROBE, *packages],
        check=False,
        capture_output=True,
        text=True,
        timeout=120 * patience(),
    )
    assert done.returncode == 0, done.stderr
    return Imported(**json.loads(done.stdout.splitlines()[-1]))


def uv(*arguments: str | Path) -> None:
    """Runs uv with the interpreters of this machine; what it says is the failure's text."""
    done = subprocess.run(
        [UV, "--no-python-downloads", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=600 * patience(),
    )
    assert done.returncode == 0, done.stderr
