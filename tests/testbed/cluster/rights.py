"""Rights that pods as processes need of a machine, and those that this one lacks."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import Final

import pytest

_TOOLS: Final = ("unshare", "nsenter", "ip")
_TRIAL: Final = (
    *("unshare", "--mount", "--net", "--uts", "--ipc", "--propagation", "private"),
    *("ip", "link", "set", "lo", "up"),
)


@functools.cache
def lacking() -> str:
    """Return the tools or rights that are missing here, for people; empty if nothing is."""
    if os.geteuid() != 0:
        return "pods as processes need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"pods as processes need {', '.join(missing)} (packages util-linux and iproute2)"
    tried = subprocess.run(_TRIAL, capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode:
        return f"pods as processes need namespaces of their own: {tried.stderr.strip()}"
    return ""


needs_pods = pytest.mark.skipif(bool(lacking()), reason=lacking())
