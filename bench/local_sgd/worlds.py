"""Starts the ranks of a world, each in its network if it has one, and gathers their measures.

A network of a rank is a namespace of this machine; a bridge joins them, and links are shaped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench import ROOT
from bench.harness import launch
from bench.harness.launch import WorldError
from bench.local_sgd.plan import ReplicaWorld

LIMIT_SECONDS: Final = 3600.0
"""For one world, s: losses beside other work."""
INTERFACE: Final = "eth0"
"""In each namespace."""
_numbers: Final = itertools.count()
"""Of networks: the kernel ends the links of a namespace some time after it is deleted."""
_BURST: Final = 32 * 1024
"""Bytes that a link may send at once: far less than a unit."""


class NetworkError(Exception):
    """This user or kernel cannot make networks."""


@contextlib.contextmanager
def networks(ranks: int, mbit: float | None) -> Iterator[list[str]]:
    """Make a network for each rank; yield the names of the namespaces.

    Rank r has the address 10.77.0.(r + 1). The rate holds for what a rank sends.

    Raises:
        NetworkError: `ip` or `tc` is missing, or refuses.
    """
    own = f"hfb{os.getpid() % 10_000}x{next(_numbers) % 100}"
    names = [f"{own}n{rank}" for rank in range(ranks)]
    try:
        _ip("link", "add", own, "type", "bridge")
        _ip("link", "set", own, "up")
        for rank, name in enumerate(names):
            _join(own, rank, name, mbit)
        yield names
    finally:
        for name in names:
            _try("ip", "netns", "del", name)
        _try("ip", "link", "del", own)


def _join(bridge: str, rank: int, name: str, mbit: float | None) -> None:
    outer, inner = f"{bridge}v{rank}", f"{bridge}w{rank}"
    _ip("netns", "add", name)
    _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
    _ip("link", "set", inner, "netns", name)
    _ip("link", "set", outer, "master", bridge)
    _ip("link", "set", outer, "up")
    _ip("-n", name, "link", "set", inner, "name", INTERFACE)
    _ip("-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", INTERFACE)
    _ip("-n", name, "link", "set", INTERFACE, "up")
    _ip("-n", name, "link", "set", "lo", "up")
    if mbit is not None:
        shape = ["rate", f"{mbit:g}mbit", "burst", str(_BURST), "latency", "200ms"]
        _run("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *shape)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise NetworkError(f"{' '.join(words)}: {said.strip()}") from error


def _try(*words: str) -> None:
    with contextlib.suppress(NetworkError):
        _run(*words)


def run(world: ReplicaWorld, port: int) -> list[dict[str, Any]]:
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


def _environment(world: ReplicaWorld, rank: int, port: int) -> dict[str, str]:
    return launch.variables(
        "examples",
        RANK=str(rank),
        WORLD_SIZE=str(world.ranks),
        MASTER_ADDR="10.77.0.1" if world.networks else "127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME=INTERFACE if world.networks else "lo",
        PYTHONWARNINGS="ignore",
    )
