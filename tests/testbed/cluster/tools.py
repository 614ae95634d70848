"""Places of the real programs of a test cluster; scripts/cluster_tools.sh builds them."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

_SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "cluster_tools.sh"


class ToolsMissingError(RuntimeError):
    """The programs are not built; says how to build them."""


@functools.cache
def tools_folder() -> Path:
    """Return the folder with etcd, kube-apiserver, kubectl, helm and the others.

    Raises:
        ToolsMissingError: they are not built; a test does not spend ten minutes on that.
    """
    done = subprocess.run([_SCRIPT, "--no-build"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolsMissingError(done.stderr.strip())
    return Path(done.stdout.strip())
