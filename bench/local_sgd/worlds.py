"""Starts the ranks of a world, each in its network if it has one, and gathers their measures."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.local_sgd.network import INTERFACE, networks
from bench.local_sgd.plan import World

LIMIT_SECONDS: Final = 3600.0
"""For one world, s: losses beside other work."""
ROOT: Final = Path(__file__).resolve().parents[2]


class WorldError(Exception):
    """A rank failed; the text has its last words."""


def run(world: World, port: int) -> list[dict[str, Any]]:
    """Run a world to its end; return the lines of JSON that rank 0 has written.

    Raises:
        WorldError: a rank failed, or the world took longer than `LIMIT_SECONDS`.
        NetworkError: the world wants networks and there are none.
    """
    with ExitStack() as stack:
        names: list[str] = []
        if world.networks:
            names = stack.enter_context(networks(world.ranks, world.mbit))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = folder / "world.json"
        plan.write_text(json.dumps(dataclasses.asdict(world)))
        ranks = []
        for rank in range(world.ranks):
            inside = ["ip", "netns", "exec", names[rank]] if names else []
            errors = stack.enter_context((folder / f"errors_{rank}").open("w"))
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", "bench.local_sgd.rank", str(plan)],
                env=_environment(world, rank, port),
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # the kernel's autogroups share the cores by session
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        for rank, process in enumerate(ranks):
            _wait(process, folder / f"errors_{rank}", f"{world.row}, {world.group}, rank {rank}")
        return [json.loads(line) for line in (folder / "lines").read_text().splitlines()]


def _wait(process: subprocess.Popen[bytes], errors: Path, what: str) -> None:
    try:
        code = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{what}: not over in {LIMIT_SECONDS:g} s") from error
    if code:
        raise WorldError(f"{what}: exit code {code}: {errors.read_text()[-3000:]}")


def _environment(world: World, rank: int, port: int) -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(world.ranks),
        "MASTER_ADDR": "10.77.0.1" if world.networks else "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": INTERFACE if world.networks else "lo",
        "PYTHONWARNINGS": "ignore",
    }
