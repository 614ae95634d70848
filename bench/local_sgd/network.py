"""Networks of ranks on one machine: a namespace each, joined by a bridge, with shaped links."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from typing import Final

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
