"""`make cluster REAL=1` is killed: nothing of its nodes stays on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cluster.real.images import lacking

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]
_TESTS = Path(__file__).resolve().parents[3]
_SUPPORT = f"{_TESTS / 'support'}{os.pathsep}{_TESTS / 'testbed'}"
_END_SECONDS = 30.0


def _groups(pid: int) -> list[str]:
    return [str(one) for one in Path("/sys/fs/cgroup").rglob(f"holdfast-{pid}-*")]


def test_nothing_is_left_of_real_nodes_whose_owner_was_killed(tmp_path: Path) -> None:
    """SIGKILL ends every process in their namespaces, and takes their cgroups and mounts away."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster", "--real", "--nodes=1"],
        env={**os.environ, "PYTHONPATH": _SUPPORT, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert any("Ctrl-C ends the cluster" in line for line in process.stdout)
        begun = psutil.Process(process.pid).children(recursive=True)
        assert {"kubelet", "containerd", "containerd-shim", "coredns"} <= {
            one.name().removesuffix("-runc-v2") for one in begun
        }
        assert _groups(process.pid)
    finally:
        process.kill()
        process.communicate()
    assert psutil.wait_procs(begun, _END_SECONDS)[1] == []
    deadline = time.monotonic() + _END_SECONDS
    while left := _groups(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
