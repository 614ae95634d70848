"""Targets of faults: agents, zygotes, ranks and the master, as handles that survive pid reuse.

Belongs here: finding processes. Does not belong here: the faults themselves (`inject`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import JobHome
from holdfast_cli.runner.processes import descendants
from holdfast_wire.messages import ListNodesRequest, NodeInfo, NodeState

_Any = TypeVar("_Any")


@dataclasses.dataclass(frozen=True, slots=True)
class PidfdProcess:
    """A process behind a descriptor: a signal never reaches another process with the same pid."""

    pid: int
    fd: int

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def hold(pids: Iterable[int]) -> list[PidfdProcess]:
    """Return handles of the living processes of this runner; old pids may mean others by now."""
    held = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            held.append(PidfdProcess(pid, os.pidfd_open(pid)))
    ours = set(descendants(os.getpid()))
    for process in held:
        if process.pid not in ours:
            process.close()
    return [process for process in held if process.pid in ours]


class Census:
    """Asks the master for the processes of a job; without an answer its last one counts."""

    def __init__(self, home: JobHome) -> None:
        self._home = home
        self._nodes: tuple[NodeInfo, ...] = ()

    def nodes(self) -> list[NodeInfo]:
        """Return the nodes with a living agent, by node rank."""
        with contextlib.suppress(CliError), JobClient(self._home) as client:
            self._nodes = tuple(client.call(ListNodesRequest(), 2.0).nodes)
        there = [node for node in self._nodes if node.state not in _GONE and node.agent_pid]
        return sorted(there, key=lambda node: node.node_rank)

    def ranks(self) -> list[tuple[int, int]]:
        """Return rank and pid of every living rank, by rank."""
        return sorted((r.rank, r.pid) for node in self.nodes() for r in node.ranks if r.pid)

    def zygote(self, node: NodeInfo) -> list[int]:
        """Return the process that the node's ranks were forked from, if it has ranks."""
        parents = {_parent(rank.pid) for rank in node.ranks if rank.pid}
        return sorted(parents - {0, 1, node.agent_pid})

    def tree(self, node: NodeInfo) -> list[int]:
        """Return the agent and all processes below it."""
        return [node.agent_pid, *descendants(node.agent_pid)]

    def master(self) -> list[int]:
        """Return the master's process."""
        endpoint = self._home.endpoint()
        return [endpoint.pid] if endpoint else []

    def remove_journal(self) -> None:
        """Remove the master's files, as a lost disk does; its successor makes the directory."""
        shutil.rmtree(self._home.journal, ignore_errors=True)


_GONE = frozenset({NodeState.LOST, NodeState.MISSING})


def pick(there: Sequence[_Any], whom: float) -> _Any | None:
    """Return the element at a fraction from 0 to below 1; None: there is none."""
    return there[int(whom * len(there))] if there else None


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
