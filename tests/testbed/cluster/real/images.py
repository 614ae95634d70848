"""Programs and images of real nodes, which scripts build, and what a machine lacks for them."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[4]
_CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
SITE: Final = "/opt/host-site"
"""Where the image looks for packages that it has not: torch."""


class NodesMissingError(RuntimeError):
    """Something that real nodes need is not built; says how to build it."""


def _printed(*words: str) -> Path:
    done = subprocess.run(
        [_ROOT / "scripts" / words[0], *words[1:]], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NodesMissingError(done.stderr.strip())
    return Path(done.stdout.strip())


@functools.cache
def tools_folder() -> Path:
    """Return the folder with the control plane's programs, kubelet, kube-proxy and coredns."""
    return _printed("cluster_tools.sh", "--nodes", "--no-build")


@functools.cache
def image_folder() -> Path:
    """Return the folder with the product's image of this checkout."""
    return _printed("node_image.sh", "--no-build")


def image_name() -> str:
    """Return the name of the product's image."""
    return (image_folder() / "image").read_text().strip()


def image_values() -> tuple[str, ...]:
    """Return the chart's values that name the image."""
    repository, _, tag = image_name().rpartition(":")
    return (f"image.repository={repository}", f"image.tag={tag}", "image.pullPolicy=Never")


@functools.cache
def lacking() -> str:
    """Return what this machine lacks for real nodes, for people; empty if nothing is."""
    if os.geteuid() != 0:
        return "real nodes need root"
    lines = Path("/proc/self/cgroup").read_text("ascii").splitlines()
    alone = {line.split(":")[1] for line in lines}
    missing = [one for one in _CONTROLLERS if one not in alone]
    if missing:
        return f"real nodes need cgroup v1, a hierarchy for each controller; without one: {missing}"
    try:
        tools_folder(), image_folder()
    except NodesMissingError as error:
        return str(error)
    if Path(tempfile.gettempdir()).stat().st_dev != image_folder().stat().st_dev:
        return f"real nodes need TMPDIR on the file system of {image_folder()}, to which they link"
    return ""
