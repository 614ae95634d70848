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
_OPERATOR: Final = "localhost/holdfast"
SITE: Final = "/opt/host-site"
"""Where a training image looks for packages that it has not: torch."""


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
    """Return the folder with the product's images of this checkout."""
    return _printed("node_image.sh", "--no-build")


def _tag() -> str:
    return (image_folder() / "tag").read_text().strip()


def operator_image() -> str:
    """Return the name of the image that the operator and the job masters run."""
    return f"{_OPERATOR}:{_tag()}"


def training_image() -> str:
    """Return the name of an image made from the worker's, as a user's is."""
    return f"localhost/holdfast-train:{_tag()}"


def image_values() -> tuple[str, ...]:
    """Return the chart's values that name the operator's image."""
    return (f"image.repository={_OPERATOR}", f"image.tag={_tag()}", "image.pullPolicy=Never")


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
