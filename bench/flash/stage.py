"""Surroundings of one measurement, in a sandbox: `python -m bench.flash.stage REQUEST`.

An empty /dev/shm, and for DLRover empty directories where it has fixed ones; a keeper where an
agent would have one; DLRover's master. Starts the ranks, and counts what shared memory is left when
all of them, and what kept the checkpoints, have ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.flash.results import OURS, PEERS, RESTORE, TWO
from bench.flash.worker import Request, read
from bench.recovery.systems.agents import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
WORKER: Final = Path(__file__).with_name("worker.py")
_FIXED: Final = (Path("/tmp/dlrover"), Path("/tmp/ckpt_sock"))  # noqa: S108 - DLRover's choice
_SHARED: Final = Path("/dev/shm")  # noqa: S108 - where DLRover puts its memory
_ENDS_SECONDS: Final = 20.0
"""Seconds in which keepers end after their trainers."""


def main(path: Path, python: str) -> int:
    """Run the request; the exit code of what failed first, or 0."""
    request = read(path)
    _mount(_SHARED, "size=20g")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    if request.system in PEERS:
        code = _dlrover(request, [python, str(WORKER), str(path)], environment)
    else:
        code = _ranks(request, [python, str(WORKER), str(path)], environment)
    out = Path(request.out)
    if out.exists():
        found = json.loads(out.read_text())
        found["figures"]["left_bytes"] = left(wait_s=_ENDS_SECONDS)
        out.write_text(json.dumps(found))
    return code


def _ranks(request: Request, command: Sequence[str], environment: dict[str, str]) -> int:
    kept = request.system in OURS and request.case in (TWO, RESTORE)
    with _keeper(Path(request.folder, "keeper")) if kept else contextlib.nullcontext("") as socket:
        ranks = [
            subprocess.Popen(
                command,
                env=environment
                | {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(request.ranks),
                    "LOCAL_WORLD_SIZE": str(request.ranks),
                    "HOLDFAST_ARENA": socket,
                },
            )
            for rank in range(request.ranks)
        ]
        return max(rank.wait() for rank in ranks)


@contextlib.contextmanager
def _keeper(socket: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "holdfast.flash.server.main", "--listen", str(socket)]
    process = subprocess.Popen(command)
    try:
        while not socket.exists():
            time.sleep(0.01)
        yield str(socket)
    finally:
        process.terminate()
        process.wait()


def _dlrover(request: Request, command: Sequence[str], environment: dict[str, str]) -> int:
    """Run the ranks below DLRover's agent, beside a master of its own, as its pods would."""
    for directory in _FIXED:
        directory.mkdir(exist_ok=True)
        _mount(directory, "size=1g")
    python, *script = command
    port = str(free_port())
    master = [python, "-u", "-m", "dlrover.python.master.main", "--platform", "local"]
    master += ["--job_name", "bench", "--node_num", "1", "--port", port]
    agent = [python, "-m", "dlrover.trainer.torch.elastic_run", "--nnodes=1"]
    agent += [f"--nproc-per-node={request.ranks}", "--max-restarts=0", *script]
    own = environment | {
        "DLROVER_MASTER_ADDR": f"127.0.0.1:{port}",
        "ELASTIC_JOB_NAME": "bench",
        "NODE_ID": "0",
        "NODE_RANK": "0",
        "NODE_NUM": "1",
        "POD_NAME": "bench-0",
        "POD_IP": "127.0.0.1",
    }
    started = subprocess.Popen(master, env=own)
    try:
        return subprocess.run(agent, env=own, check=False).returncode
    finally:
        started.kill()
        started.wait()


def left(*, wait_s: float) -> int:
    """Return the bytes of shared memory that somebody still holds, or that lie there as files."""
    until = time.monotonic() + wait_s
    while (found := _files() + _unnamed()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _files() -> int:
    return sum(path.lstat().st_blocks * 512 for path in _SHARED.rglob("*") if path.is_file())


def _unnamed() -> int:
    """Return the bytes of all memfds of this sandbox's processes."""
    found: dict[int, int] = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:"):
                status = link.stat()
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _mount(directory: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "bench", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=10)


if __name__ == "__main__":
    # As the sandbox does: nobody is waited for.
    os._exit(main(Path(sys.argv[1]), sys.argv[2]))
