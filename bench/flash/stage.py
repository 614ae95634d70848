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

from bench import ROOT
from bench.flash.results import OURS, PEERS, RESTORE, TWO
from bench.flash.worker import Order, read
from bench.harness import launch

WORKER: Final = Path(__file__).with_name("worker.py")
_ENDS_SECONDS: Final = 20.0
"""Seconds in which keepers end after their trainers."""


def main(path: Path, python: str) -> int:
    """Run the request; the exit code of what failed first, or 0."""
    request = read(path)
    launch.mount(launch.SHARED_MEMORY, "size=20g")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(launch.free_port()),
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


def _ranks(request: Order, command: Sequence[str], environment: dict[str, str]) -> int:
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


def _dlrover(request: Order, command: Sequence[str], environment: dict[str, str]) -> int:
    """Run the ranks below DLRover's agent, beside a master of its own, as its pods would."""
    launch.hide_dlrover_directories()
    python, *script = command
    port = launch.free_port()
    agent = [python, "-m", "dlrover.trainer.torch.elastic_run", "--nnodes=1"]
    agent += [f"--nproc-per-node={request.ranks}", "--max-restarts=0", *script]
    own = environment | launch.dlrover_variables(0, 1, port)
    started = subprocess.Popen(launch.dlrover_master(python, 1, port), env=own)
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
    return sum(
        path.lstat().st_blocks * 512 for path in launch.SHARED_MEMORY.rglob("*") if path.is_file()
    )


def _unnamed() -> int:
    """Return the bytes of all memfds of this sandbox's processes."""
    found: dict[int, int] = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:"):
                status = link.stat()
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


if __name__ == "__main__":
    # As the sandbox does: nobody is waited for.
    os._exit(main(Path(sys.argv[1]), sys.argv[2]))
