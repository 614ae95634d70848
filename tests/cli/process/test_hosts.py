"""A job whose workers run on other hosts: they share files and TCP with the runner, no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from agents.loop_script import loop_script

pytestmark = [pytest.mark.train, pytest.mark.timeout(120)]
_LAUNCH = """#!/bin/sh
host=$1; shift
echo "$host $$" >> {folder}/started
exec env -i PATH=/usr/bin:/bin HOME={folder} HOST=$host "$@"
"""


def _job(folder: Path) -> Path:
    words = ("holdfast-run", "--nproc-per-node=1", *loop_script(folder, "--steps=60"))
    container = {"name": "worker", "command": list(words)}
    spec = {
        "replicas": 2,
        "worker": {"template": {"spec": {"containers": [container]}}},
    }
    file = folder / "job.yaml"
    kind = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "ElasticJob"}
    file.write_text(yaml.safe_dump({**kind, "metadata": {"name": "far"}, "spec": spec}))
    return file


def _started(folder: Path) -> list[tuple[str, int]]:
    """Return host and process of each launcher, in the order of their starts."""
    try:
        lines = (folder / "started").read_text().splitlines()
    except OSError:
        return []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def test_workers_train_on_their_hosts_and_a_lost_one_is_started_again(tmp_path: Path) -> None:
    """Launchers that hand no variable on start a worker on each host, and again after a kill."""
    launch = tmp_path / "launch"
    launch.write_text(_LAUNCH.format(folder=tmp_path))
    launch.chmod(0o755)
    command = [sys.executable, "-m", "holdfast_cli.main", "run", str(_job(tmp_path))]
    options = ("--hosts=a,b,spare", f"--launcher={launch} {{host}}", "--address=127.0.0.1")
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    running = subprocess.Popen(
        [*command, *options], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        deadline = time.monotonic() + 60
        while len(_started(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        first = _started(tmp_path)
        assert {host for host, _ in first} == {"a", "b"}, running.poll()
        time.sleep(3.0)
        os.kill(first[0][1], signal.SIGKILL)
        output = running.communicate(timeout=90)[0].decode()
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, output
    assert len(_started(tmp_path)) == 3, output
    assert _started(tmp_path)[2][0] == "spare"
