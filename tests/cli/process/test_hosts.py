"""A job whose workers run on other hosts: they share files and TCP with the runner, no more."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from agents.loop_script import loop_script
from cluster.rights import needs_pods
from house.patience import patience
from house.repository import ROOT

pytestmark = [pytest.mark.train, pytest.mark.timeout(200)]
_LIGHT: Final = [{"name": "HOLDFAST_PRELOAD", "value": "-torch"}]
"""Agents import nothing but torch before the first fork: no script here has an optimizer."""
_PAGE: Final = ROOT / "docs/migration/from-slurm.md"
_SCRIPTS: Final = Path(sys.executable).parent
_LAUNCH = """#!/bin/sh
host=$1; shift
echo "$host $$" >> {folder}/started
exec env -i PATH=/usr/bin:/bin HOME={folder} HOST=$host "$@"
"""
_SRUN = """#!/bin/sh
for word; do
  case $word in
    --nodelist=*) host=${{word#*=}}; shift;;
    -*) shift;;
    *) break;;
  esac
done
[ -n "$host" ] || exec "$@"
echo "$host $$" >> {folder}/started
cd /
exec ip netns exec {net}$host env -i PATH=/usr/bin:/bin HOME=/nowhere SLURMD_NODENAME=$host "$@"
"""
"""A program of one host: no variable, directory or loopback of the batch host's, and another
network; ends with the process that Slurm would end."""
_SCONTROL = """#!/bin/sh
case $1 in
  show) echo "$3" | tr , '\\n';;
  *) echo "$*" >> {folder}/asked;;
esac
"""
_BATCH: Final = """
hostname batch
mount --bind {folder}/hosts /etc/hosts
exec ip netns exec {net}batch bash {folder}/job.sh
"""


def _job(folder: Path, *flags: str) -> Path:
    words = ("holdfast-run", "--nproc-per-node=1", *loop_script(folder, *flags))
    container = {"name": "worker", "command": list(words), "env": _LIGHT}
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


def _program(file: Path, text: str, **words: object) -> Path:
    file.write_text(text.format(**words))
    file.chmod(0o755)
    return file


def _until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 90 * patience()
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class _Run:
    """A command whose output goes to a file."""

    def __init__(self, folder: Path, command: list[str], environ: dict[str, str]) -> None:
        self._file = folder / "output"
        with self._file.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """Everything that it has written."""
        return self._file.read_text()

    def until_step(self) -> None:
        """Wait until all ranks have made ten steps, and the master knows each of them."""
        _until(lambda: re.search(r" step [1-9]\d", self.said) is not None, lambda: self.said)

    def ends(self) -> int:
        """Wait for its end; return its exit code."""
        return self.process.wait(timeout=90 * patience())


@contextlib.contextmanager
def _run(folder: Path, command: list[str], environ: dict[str, str]) -> Iterator[_Run]:
    running = _Run(folder, command, environ)
    try:
        yield running
    finally:
        # A script that is killed leaves what it started in the background.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


def test_workers_train_on_their_hosts_and_a_lost_one_is_started_again(tmp_path: Path) -> None:
    """Launchers that hand no variable on start a worker on each host; a killed one's on a third."""
    launch = _program(tmp_path / "launch", _LAUNCH, folder=tmp_path)
    command = [sys.executable, "-m", "holdfast_cli.main", "run", str(_job(tmp_path, "--steps=400"))]
    options = ["--hosts=a,b,spare", f"--launcher={launch} {{host}}", "--address=127.0.0.1"]
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    with _run(tmp_path, [*command, *options], environ) as running:
        running.until_step()
        first = _started(tmp_path)
        assert {host for host, _ in first} == {"a", "b"}
        os.kill(first[0][1], signal.SIGKILL)
        assert running.ends() == 0, running.said
    assert [host for host, _ in _started(tmp_path)[2:]] == ["spare"], running.said


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20, capture_output=True)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Callable[..., contextlib.AbstractContextManager[_Run]]]:
    """Hosts with a network namespace each, and the page's batch script as Slurm would run it.

    The programs `srun` and `scontrol` do only what Slurm does for that script: the first starts a
    program on a host, the second lists the hosts and notes a requeue.
    """
    net = f"hf{os.getpid()}-"
    names = ("batch", "n1", "n2", "n3")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
        _program(bin_ / name, text, folder=tmp_path, net=net)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 batch\n")
    with contextlib.ExitStack() as made:
        for at, name in enumerate(names):
            _ip("netns", "add", net + name)
            made.callback(_ip, "netns", "del", net + name)
            _ip("-n", net + name, "link", "set", "lo", "up")
            if not at:
                _ip("-n", net + name, "link", "add", "br0", "type", "bridge")
                _ip("-n", net + name, "addr", "add", "10.77.0.1/24", "dev", "br0")
                _ip("-n", net + name, "link", "set", "br0", "up")
                continue
            peer = ("peer", "name", "eth0", "netns", net + name)
            _ip("-n", net + "batch", "link", "add", f"v{at}", "type", "veth", *peer)
            _ip("-n", net + "batch", "link", "set", f"v{at}", "master", "br0", "up")
            _ip("-n", net + name, "addr", "add", f"10.77.0.{at + 1}/24", "dev", "eth0")
            _ip("-n", net + name, "link", "set", "eth0", "up")
        batch = _BATCH.format(folder=tmp_path, net=net)
        environ = {
            "HOME": str(tmp_path),
            "PATH": f"{bin_}:{_SCRIPTS}:/usr/bin:/bin:/usr/sbin:/sbin",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1,n2,n3",
        }
        command = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", batch]
        yield lambda: _run(tmp_path, command, environ)


def _pages_files(folder: Path, *flags: str) -> None:
    """Write the page's batch script and job, with this test's training script and one process."""
    blocks = dict(re.findall(r"```(bash|yaml)\n(.*?)```", _PAGE.read_text(), re.DOTALL))
    (folder / "job.sh").write_text(blocks["bash"])
    job: dict[str, Any] = yaml.safe_load(blocks["yaml"])
    spec = job["spec"]
    assert (spec["replicas"], spec["minReplicas"]) == (4, 2)
    spec |= {"replicas": 2, "minReplicas": 1, "checkpoint": {"path": str(folder / "kept")}}
    (container,) = spec["worker"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["holdfast-run", "--nproc-per-node=8", "train.py"]
    container["env"] = _LIGHT
    container["command"][1:] = ["--nproc-per-node=1", *loop_script(folder, *flags)]
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


@needs_pods
def test_the_batch_script_of_the_page_runs_a_job_through_the_loss_of_a_node(
    tmp_path: Path, slurm: Callable[..., contextlib.AbstractContextManager[_Run]]
) -> None:
    """Hosts of other networks, directories and variables train; a spare one takes a lost place."""
    _pages_files(tmp_path, "--steps=400")
    with slurm() as batch:
        batch.until_step()
        first = _started(tmp_path)
        assert {host for host, _ in first} == {"n1", "n2"}
        os.kill(first[0][1], signal.SIGKILL)
        assert batch.ends() == 0, batch.said
    assert [host for host, _ in _started(tmp_path)[2:]] == ["n3"], batch.said
    assert not (tmp_path / "asked").exists()


@needs_pods
def test_the_time_limit_of_slurm_stops_the_ranks_at_one_step_and_puts_the_job_back(
    tmp_path: Path, slurm: Callable[..., contextlib.AbstractContextManager[_Run]]
) -> None:
    """The signal that the page's script asks for leads to a save of all ranks and a requeue."""
    _pages_files(tmp_path, "--steps=100000")
    wanted = re.search(r"--signal=B:(\w+)@", (tmp_path / "job.sh").read_text())
    assert wanted is not None
    with slurm() as batch:
        batch.until_step()
        batch.process.send_signal(getattr(signal, f"SIG{wanted[1]}"))
        batch.ends()
    assert "BarrierReached" in batch.said, batch.said
    assert "was stopped after" in batch.said
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
