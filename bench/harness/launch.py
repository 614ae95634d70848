"""Starts what benches measure: free ports, paths of ranks, commands that must end well, DLRover."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import ROOT

HOLDFAST, TORCHRUN = "holdfast", "torchrun"
LAUNCHERS: Mapping[str, Sequence[str]] = {
    TORCHRUN: ("-m", "torch.distributed.run", "--standalone"),
    HOLDFAST: ("-c", "from holdfast_agent.main import main; main()"),
}
"""Arguments of Python that start the ranks of one node."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - on purpose, with fresh directories in it
_DLROVER_JOB = "bench"
_DLROVER_FIXED = (Path("/tmp/dlrover"), Path("/tmp/ckpt_sock"))  # noqa: S108 - its choice


class WorldError(Exception):
    """A rank failed; the text has its last words."""


def free_port() -> int:
    """Return a TCP port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def in_memory() -> Path | None:
    """Return a directory on shared memory, where this user may make others; None: there is none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def variables(*folders: str, **more: str) -> dict[str, str]:
    """Return the environment of ranks of one thread that import the checkout and its `folders`."""
    path = [str(ROOT), *(str(ROOT / folder) for folder in folders), os.environ.get("PYTHONPATH")]
    found = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **found, **more}


def said(command: Sequence[str], what: str, limit_s: float | None = None, env: Any = None) -> str:
    """Run a command to its end; return what it has printed.

    Raises:
        WorldError: it failed, or took longer than `limit_s`.
    """
    try:
        ended = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{what}: not over in {limit_s:g} s") from error
    if ended.returncode:
        # Without the launcher's own trace.
        errors = ended.stderr.partition("torch.distributed.elastic.multiprocessing.errors")[0]
        raise WorldError(f"{what}: exit code {ended.returncode}: {errors[-3000:]}")
    return ended.stdout


def dlrover_master(python: str, nodes: int, port: int, *options: str) -> list[str]:
    """Return the command of DLRover's "local" master, which has no cluster to watch."""
    words = [python, "-u", "-m", "dlrover.python.master.main", "--platform", "local"]
    words += ["--job_name", _DLROVER_JOB, "--node_num", str(nodes), "--port", str(port)]
    return [*words, *options]


def dlrover_variables(node: int, nodes: int, port: int) -> dict[str, str]:
    """Return the variables that DLRover's operator writes into a worker pod."""
    return {
        "DLROVER_MASTER_ADDR": f"127.0.0.1:{port}",
        "ELASTIC_JOB_NAME": _DLROVER_JOB,
        "NODE_ID": str(node),
        "NODE_RANK": str(node),
        "NODE_NUM": str(nodes),
        "POD_NAME": f"{_DLROVER_JOB}-{node}",
        "POD_IP": "127.0.0.1",
    }


def hide_dlrover_directories() -> None:
    """Put an empty tmpfs of this sandbox over the paths that DLRover uses on every machine."""
    for directory in _DLROVER_FIXED:
        directory.mkdir(exist_ok=True)
        mount(directory, "size=1g")


def mount(directory: Path, options: str) -> None:
    """Put an empty tmpfs over a directory."""
    command = ["mount", "-t", "tmpfs", "-o", options, "bench", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=10)
