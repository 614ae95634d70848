"""What an image of the operator has, seen from inside: its pod runs this file's text.

Only the standard library, and nothing of the tests: the image has neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

_INSTALLED = Path("/opt/holdfast")
_PARTS = ("holdfast_wire", "holdfast_master", "holdfast_operator")
_ABSENT = ("torch", "numpy", "pip", "holdfast", "holdfast_agent", "holdfast_cli")
_SHELLS = {"sh", "bash", "dash", "ash", "busybox", "perl", "apt-get", "dpkg"}
_KERNEL = {"/proc", "/sys", "/dev"}
_UNCHECKED = 1  # in the second word of byte code, see PEP 552


def _files(root: str) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if os.path.join(folder, one) not in _KERNEL]  # noqa: PTH118
        yield from (Path(folder, name) for name in names)


def _not_imported() -> tuple[int, list[str]]:
    count = 0
    failures: list[str] = []
    for part in _PARTS:
        path = importlib.import_module(part).__path__
        for module in pkgutil.walk_packages(path, f"{part}.", onerror=failures.append):
            if module.name.endswith(".__main__"):
                continue
            count += 1
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                failures.append(f"{module.name}: {error}")
    return count, failures


def _written() -> list[str]:
    """Return the folders that take a file: none should."""
    taken = []
    for folder in ("/", "/opt/holdfast", "/tmp", "/var", "/usr"):  # noqa: S108 - of the image
        try:
            Path(folder, "written").write_text("")
        except OSError:
            continue
        taken.append(folder)
    return taken


def _without_byte_code() -> list[str]:
    """Return sources that each start would compile, or whose byte code is compared with a time."""
    sources = [one for one in _files(str(_INSTALLED / "lib")) if one.suffix == ".py"]
    wrong = []
    for source in sources:
        compiled = Path(importlib.util.cache_from_source(str(source)))
        flags = compiled.read_bytes()[4:8] if compiled.exists() else b""
        if int.from_bytes(flags, "little") != _UNCHECKED:
            wrong.append(str(source))
    return wrong


def main() -> None:
    """Print it as JSON."""
    modules, failures = _not_imported()
    everything = {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "capabilities": next(
            line.split()[1]
            for line in Path("/proc/self/status").read_text("ascii").splitlines()
            if line.startswith("CapEff")
        ),
        "modules": modules,
        "not imported": failures,
        "imported": [one for one in _ABSENT if importlib.util.find_spec(one)],
        "shells": [str(one) for one in _files("/") if one.name in _SHELLS],
        "written": _written(),
        "megabytes": sum(one.lstat().st_blocks * 512 for one in _files(str(_INSTALLED))) / 1e6,
        "without byte code": _without_byte_code(),
    }
    json.dump(everything, sys.stdout)


if __name__ == "__main__":
    main()
