"""Real agents on this machine, each with a host name of its own: one of them is bad.

Each node has one core of this machine, or where there are more nodes than cores a fixed share of
one, so that it is as fast as the others whatever they do. Without the quota a node is as fast as
its neighbours let it be, so a check of healthy nodes finds fast and slow ones.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from bench import ROOT
from bench.preflight.checks import Line, waiting
from holdfast_wire.messages import JobEvent
from holdfast_wire.reasons import EventReason
from jobs.local_job import RunningJob

SIZES = (2, 3, 4)
FAULTS = ("none", "slow memory", "dead")
NETWORK_BY_LOOPBACK = "lo"
_PROGRAM = "holdfast_agent.health.node_check.program"
_SLOW_COPIES = ROOT / "tests/support/nodes/slow_copies"
_LIMIT_SECONDS = 300.0
_HOST = """
hostname "machine-$HOLDFAST_NODE_RANK"
for file in $CGROUP_FILES; do
  case $file in *-$HOLDFAST_NODE_RANK/cgroup.procs) echo 0 > "$file";; esac
done
exec taskset --cpu-list $((HOLDFAST_NODE_RANK % CORES)) "$@"
"""
_SCRIPT = """
import pathlib, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""
_PERIOD_US = 10_000
"""Kernel's default is 100,000: a measurement of milliseconds would see a whole core or none."""
_V1 = Path("/sys/fs/cgroup/cpu")
_V2 = Path("/sys/fs/cgroup")
_VERDICTS = {EventReason.PREFLIGHT_FAILED, EventReason.PREFLIGHT_PASSED}


def lines(trials: int, sizes: tuple[int, ...] = SIZES) -> Iterator[Line]:
    """Run every trial; yield a line for each."""
    for at in range(trials):
        for nodes in sizes:
            for fault in FAULTS:
                yield trial(nodes, fault, at % nodes)


def trial(nodes: int, fault: str, bad: int) -> Line:
    """Check so many nodes, one of them with a fault, and say who was named."""
    # Of 3 nodes on 2 cores, two would have a faster link, within a core: all are on one.
    share = 1.0 if nodes <= (os.cpu_count() or 1) else 1 / nodes
    with (
        tempfile.TemporaryDirectory(prefix="preflight-") as name,
        _slow(bad, fault),
        _cgroups(nodes if share < 1.0 else 0, share) as files,
    ):
        folder = Path(name)
        (folder / "script.py").write_text(_SCRIPT)
        with (
            RunningJob(_job(folder, nodes, files), folder) as job,
            _killer(job, bad, fault),
            waiting() as waited,
        ):
            job.wait_event(EventReason.WORLD_ASSIGNED, timeout_s=_LIMIT_SECONDS)
            events, pressure = job.events(), waited()
            (folder / "end").touch()
            job.finish()
    named = [int(one.node) for one in events if one.reason == EventReason.PREFLIGHT_FAILED]
    return {
        "what": "real",
        "nodes": nodes,
        "fault": fault,
        "named": int(fault != "none" and bad in named),
        "wrong": len([one for one in named if one != bad or fault == "none"]),
        "from_hello_s": _passed(events, EventReason.NODE_JOINED),
        "seconds": _passed(events, EventReason.PREFLIGHT_BEGUN),
        "waited": pressure,
        "core": share if files or share == 1.0 else None,
        "verdicts": [one.text for one in events if one.reason in _VERDICTS],
    }


def _passed(events: list[JobEvent], since: str) -> float:
    """Return the seconds from the first event of a kind to the last verdict."""
    begin = min(one.unix_time for one in events if one.reason == since)
    return max(one.unix_time for one in events if one.reason in _VERDICTS) - begin


@contextlib.contextmanager
def _cgroups(nodes: int, share: float) -> Iterator[list[Path]]:
    """Yield the file of each node's cgroup that takes process ids; none: this machine has no quota.

    Args:
        nodes: Number of nodes.
        share: Of a core, for each node.
    """
    base = _base()
    folders = [base / f"holdfast-bench-{os.getpid()}-{at}" for at in range(nodes)] if base else []
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
            stack.callback(folder.rmdir)
            _limit(folder, int(share * _PERIOD_US))
        yield [folder / "cgroup.procs" for folder in folders]


def _base() -> Path | None:
    """Return the cgroup under which this process may make others with a quota."""
    if (_V1 / "cpu.cfs_quota_us").exists() and os.access(_V1, os.W_OK):
        return _V1
    control = _V2 / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if "cpu" in control.read_text().split() and os.access(_V2, os.W_OK):
            return _V2
    return None


def _limit(folder: Path, quota_us: int) -> None:
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        return
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))


def _job(folder: Path, nodes: int, files: list[Path]) -> Mapping[str, Any]:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    train = ["holdfast-run", "--nproc-per-node=1", str(folder / "script.py"), str(folder / "end")]
    container = {
        "name": "worker",
        "command": ["unshare", *as_root, "--uts", "sh", "-c", _HOST, "host", *train],
        "env": [
            {"name": "HOLDFAST_PRELOAD", "value": "-torch"},
            {"name": "CORES", "value": "1" if files else str(os.cpu_count())},
            {"name": "CGROUP_FILES", "value": " ".join(map(str, files))},
            # No machine here knows the others' names, by which gloo would find its address.
            {"name": "GLOO_SOCKET_IFNAME", "value": NETWORK_BY_LOOPBACK},
        ],
    }
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "bench"},
        "spec": {
            "replicas": nodes,
            "minReplicas": nodes,
            "health": {"preflight": {"mode": "Report"}},
            "worker": {"template": {"spec": {"containers": [container]}}},
        },
    }


@contextlib.contextmanager
def _slow(bad: int, fault: str) -> Iterator[None]:
    if fault != "slow memory":
        yield
        return
    with patch.dict(os.environ, {"PYTHONPATH": str(_SLOW_COPIES), "SLOW_COPIES": str(bad)}):
        yield


@contextlib.contextmanager
def _killer(job: RunningJob, bad: int, fault: str) -> Iterator[None]:
    """Kill what measures on the bad node as soon as it is there, once."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(job.process.pid).children(recursive=True):
                    if _PROGRAM in child.cmdline() and _rank(child) == str(bad):
                        child.kill()
                        return

    thread = threading.Thread(target=work)
    if fault == "dead":
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


def _rank(process: psutil.Process) -> str:
    return str(process.environ().get("HOLDFAST_NODE_RANK", ""))
