"""`make cluster`: what it prints can be used, and nothing of it stays, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster.jobs import manifest
from cluster.kubectl import Kubectl
from cluster.rights import needs_pods
from house.patience import patience

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
_TESTS = Path(__file__).resolve().parents[3]
_SUPPORT = f"{_TESTS / 'support'}{os.pathsep}{_TESTS / 'testbed'}"
_START_SECONDS = 120.0 * patience()
_END_SECONDS = 30.0 * patience()


def _command(nodes: int) -> list[str]:
    return [sys.executable, "-m", "cluster", f"--nodes={nodes}"]


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": _SUPPORT}


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        _command(1), env=_environ(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _kubeconfig(process: subprocess.Popen[str]) -> Path:
    """Return the path of the kubeconfig that the process names once the cluster is there."""
    assert process.stdout is not None
    said = [next(process.stdout) for _ in range(2)]
    found = re.match(r"export KUBECONFIG=(\S+) ", said[0])
    assert found is not None, said
    assert "Ctrl-C ends the cluster" in said[1]
    return Path(found[1])


def _until_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while left := [one for one in processes if one.is_running() and _lives(one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _interfaces() -> set[str]:
    return {line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()}


@needs_pods
def test_a_cluster_of_ones_own_is_used_and_leaves_nothing() -> None:
    """Its KUBECONFIG works with kubectl; SIGTERM and SIGKILL leave no process, mount, interface."""
    interfaces = _interfaces()
    with _started() as ended, _started() as killed:
        for process in (ended, killed):
            kubectl = Kubectl(_kubeconfig(process))
            kubectl.run("apply", "-f", "-", stdin=manifest("sleep", "600"))
            kubectl.run("wait", "ej/job", "--for=condition=MasterReady", "--timeout=50s")
            chosen = ("pod", "-l", "holdfast.dev/role=worker")
            kubectl.run("wait", *chosen, "--for=condition=Ready", "--timeout=50s")
            folder, number = kubectl.kubeconfig.parent, signal.SIGTERM
            below = psutil.Process(process.pid).children(recursive=True)
            assert {"etcd", "kube-apiserver"} <= {one.name() for one in below}
            assert len(below) > 10, below  # pods are among them
            flags = {flag for one in below for flag in one.cmdline()}
            assert "--node-monitor-grace-period=40s" in flags, "a busy machine loses no node"
            if process is killed:
                number = signal.SIGKILL
            process.send_signal(number)
            code = process.wait(_END_SECONDS)
            _until_gone(below)
            assert code == (0 if process is ended else -signal.SIGKILL)
            assert str(folder) not in Path("/proc/self/mountinfo").read_text()
            if process is ended:
                assert not folder.exists()
            shutil.rmtree(folder, ignore_errors=True)
    assert _interfaces() <= interfaces


@pytest.mark.parametrize("count", [0, 65])
def test_more_nodes_than_it_can_have_are_refused_in_words(count: int) -> None:
    """Before anything is started."""
    done = subprocess.run(
        _command(count), env=_environ(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert f"argument --nodes: {count} is not between 1 and 64" in done.stderr
