"""Compiles the copy helper into the wheel, and beside its source for an editable install.

Nothing else is compiled here. The helper needs only a C compiler and is called through ctypes, so
one wheel serves every Python of a platform. Without a compiler the wheel is pure and Holdfast
copies by torch, which takes up to twice as long; HOLDFAST_REQUIRE_COPY_HELPER=1 makes that an
error, for whoever publishes wheels.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("worker_agent/holdfast/flash/trainer")


class CopyHelper(BuildHookInterface):  # type: ignore[type-arg] # its builder's config is not used
    """Runs the C compiler once per build."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile `copy.c` into `libcopy.so.1` and name the platform in the wheel's tag."""
        folder = Path(self.root) / FOLDER
        try:
            _compile(folder / "copy.c", folder / "libcopy.so.1")
        except (OSError, subprocess.CalledProcessError) as error:
            (folder / "libcopy.so.1").unlink(missing_ok=True)
            if os.environ.get("HOLDFAST_REQUIRE_COPY_HELPER") == "1":
                raise RuntimeError("HOLDFAST_REQUIRE_COPY_HELPER=1, but copy.c failed") from error
            self.app.display_warning(f"no copy helper in this build: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{FOLDER}/libcopy.so.1")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def _compile(source: Path, target: Path) -> None:
    """Build under another name first: a process that has the old one mapped keeps it."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        subprocess.run(
            [*compiler, "-O3", "-shared", "-fPIC", "-pthread", "-o", str(fresh), str(source)],
            check=True,
        )
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
