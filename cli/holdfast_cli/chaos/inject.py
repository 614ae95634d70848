"""Injects the schedule's faults into a running job, and ends those that do not last.

Belongs here: the processes that are hit, signals, cut connections, their end. Does not belong here:
the draw (`schedule`). Runs on a thread of its own beside the runner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast_cli.chaos.proxy import Proxy
from holdfast_cli.chaos.schedule import Fault, FaultKind, Options, schedule
from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import JobHome, process_fields
from holdfast_cli.live_view import FINAL_PHASES, View
from holdfast_cli.runner.processes import descendants
from holdfast_wire.messages import GetJobRequest, JobPhase, ListNodesRequest, NodeInfo, NodeState

_POLL_SECONDS = 0.05
_SIGNALS: Mapping[FaultKind, signal.Signals] = {
    FaultKind.KILL_WORKER: signal.SIGKILL,
    FaultKind.KILL_TWO: signal.SIGKILL,
    FaultKind.KILL_ZYGOTE: signal.SIGKILL,
    FaultKind.KILL_AGENT: signal.SIGKILL,
    FaultKind.KILL_NODE: signal.SIGKILL,
    FaultKind.KILL_MASTER: signal.SIGKILL,
    FaultKind.LOSE_MASTER: signal.SIGKILL,
    FaultKind.PREEMPT: signal.SIGTERM,
    FaultKind.FREEZE_WORKER: signal.SIGSTOP,
    FaultKind.FREEZE_AGENT: signal.SIGSTOP,
    FaultKind.FREEZE_NODE: signal.SIGSTOP,
    FaultKind.FREEZE_MASTER: signal.SIGSTOP,
}
_HELD: Mapping[FaultKind, tuple[bool, bool]] = {
    FaultKind.PARTITION: (True, True),
    FaultKind.PARTITION_UP: (True, False),
    FaultKind.PARTITION_DOWN: (False, True),
    FaultKind.PARTITION_HALF: (True, True),
    FaultKind.PARTITION_ALL: (True, True),
}
"""Directions that are held back: (up to the master, down to the agent)."""
_GONE = frozenset({NodeState.LOST, NodeState.MISSING})
_OF_MASTER = frozenset({FaultKind.KILL_MASTER, FaultKind.LOSE_MASTER, FaultKind.FREEZE_MASTER})


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
        stats = [process_fields(rank.pid) for rank in node.ranks if rank.pid]
        parents = {int(fields[1]) for fields in stats if fields}
        return sorted(parents - {1, node.agent_pid})

    def master(self) -> list[int]:
        """Return the master's process."""
        endpoint = self._home.endpoint()
        return [endpoint.pid] if endpoint else []

    def remove_journal(self) -> None:
        """Remove the master's files, as a lost disk does; its successor makes the directory."""
        shutil.rmtree(self._home.journal, ignore_errors=True)


@dataclasses.dataclass(slots=True)
class Struck:
    """Count of the faults that were injected."""

    done: Counter[FaultKind] = dataclasses.field(default_factory=Counter)
    """By kind, those that hit a target."""
    missed: int = 0
    """Faults that found no target."""


class Chaos:
    """Faults of one run. `route` gives agents an address for the master, `play` is the director."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._proxies: dict[int, Proxy] = {}
        self._heals: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.struck = Struck()

    def route(self, home: JobHome, node_rank: int) -> str:
        """Return the address at which this node's agent finds the master."""
        if node_rank not in self._proxies:
            self._proxies[node_rank] = Proxy(lambda: _address(home))
        return f"127.0.0.1:{self._proxies[node_rank].port}"

    def play(self, home: JobHome, view: View, ended: Callable[[], bool]) -> None:
        """Inject faults until the job or the schedule ends; end those that do not last."""
        census = Census(home)
        try:
            if _trains(home, ended):
                for fault in schedule(self._options):
                    if not self._pause(fault.gap_s, ended):
                        return
                    self._strike(fault, census, view)
                self._pause(float("inf"), ended)
        finally:
            self._heal(float("inf"))

    def close(self) -> None:
        """End the proxies."""
        for proxy in self._proxies.values():
            proxy.close()

    def _pause(self, seconds: float, ended: Callable[[], bool]) -> bool:
        """Wait, and end the faults that are over meanwhile; False: the job has ended."""
        until = time.monotonic() + seconds
        while not ended():
            now = time.monotonic()
            self._heal(now)
            if now >= until or (not self._heals and seconds == float("inf")):
                return True
            time.sleep(min(_POLL_SECONDS, max(0.0, until - now)))
        return False

    def _heal(self, now: float) -> None:
        while self._heals and self._heals[0][0] <= now:
            heapq.heappop(self._heals)[2]()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        when = time.monotonic() + seconds
        heapq.heappush(self._heals, (when, next(self._numbers), what))

    def _strike(self, fault: Fault, census: Census, view: View) -> None:
        text = self._signal(fault, census) if fault.kind in _SIGNALS else self._cut(fault, census)
        if text:
            self.struck.done[fault.kind] += 1
        else:
            self.struck.missed += 1
        lasts = f" for {fault.seconds:.1f} s" if fault.seconds else ""
        view.note(f"chaos {fault.number}: {fault.kind.value} {text or 'finds nobody'}{lasts}")

    def _signal(self, fault: Fault, census: Census) -> str:
        who, pids = _targets(fault, census)
        victims = hold(pids)
        if victims and fault.kind is FaultKind.LOSE_MASTER:
            # Stopped first: it would write again, or find its files gone and step down.
            victims[0].signal(signal.SIGSTOP)
            census.remove_journal()
        for victim in victims:
            victim.signal(_SIGNALS[fault.kind])
        if fault.seconds:
            self._later(fault.seconds, lambda: _go_on(victims))
        else:
            _close(victims)
        return f"{who} (pid {', '.join(str(victim.pid) for victim in victims)})" if victims else ""

    def _cut(self, fault: Fault, census: Census) -> str:
        ranks = _cut_off(fault, [node.node_rank for node in census.nodes()], list(self._proxies))
        proxies = [self._proxies[rank] for rank in ranks if rank in self._proxies]
        for proxy in proxies:
            if fault.kind is FaultKind.RESET:
                proxy.reset()
            else:
                up, down = _HELD[fault.kind]
                proxy.hold(up=up, down=down)
                self._later(fault.seconds, proxy.heal)
        if fault.kind is FaultKind.PARTITION_ALL:
            return "every node" if proxies else ""
        return "node " + ", ".join(map(str, ranks)) if proxies else ""


def _cut_off(fault: Fault, there: Sequence[int], all_ranks: Sequence[int]) -> list[int]:
    """Return the node ranks for a cut."""
    if fault.kind is FaultKind.PARTITION_ALL:
        return sorted(all_ranks)
    if not there:
        return []
    first = int(fault.whom * len(there))
    many = len(there) // 2 if fault.kind is FaultKind.PARTITION_HALF else 1
    return sorted([*there[first:], *there[:first]][:many])


def _targets(fault: Fault, census: Census) -> tuple[str, Iterable[int]]:
    """Return the targets of a signal, in words and as pids."""
    if fault.kind in _OF_MASTER:
        return "the master", census.master()
    if fault.kind in {FaultKind.KILL_WORKER, FaultKind.KILL_TWO, FaultKind.FREEZE_WORKER}:
        ranks = census.ranks()
        first = int(fault.whom * len(ranks))
        both = [*ranks[first:], *ranks[:first]][: 2 if fault.kind is FaultKind.KILL_TWO else 1]
        return "rank " + ", ".join(str(rank) for rank, _ in both), [pid for _, pid in both]
    nodes = census.nodes()
    if not nodes:
        return "", []
    node = nodes[int(fault.whom * len(nodes))]
    return f"node {node.node_rank}", _of_node(fault.kind, node, census)


def _of_node(kind: FaultKind, node: NodeInfo, census: Census) -> list[int]:
    if kind is FaultKind.KILL_ZYGOTE:
        return census.zygote(node)
    if kind in {FaultKind.KILL_NODE, FaultKind.FREEZE_NODE}:
        return [node.agent_pid, *descendants(node.agent_pid)]
    return [node.agent_pid]


def _go_on(victims: list[PidfdProcess]) -> None:
    for victim in victims:
        victim.signal(signal.SIGCONT)
    _close(victims)


def _close(victims: list[PidfdProcess]) -> None:
    for victim in victims:
        victim.close()


def _address(home: JobHome) -> tuple[str, int] | None:
    endpoint = home.endpoint()
    return (endpoint.host, endpoint.port) if endpoint else None


def _trains(home: JobHome, ended: Callable[[], bool]) -> bool:
    """Wait until the job trains for the first time; False: it ended before."""
    while not ended():
        with contextlib.suppress(CliError), JobClient(home) as client:
            phase = client.call(GetJobRequest()).status.phase
            if phase is JobPhase.TRAINING:
                return True
            if phase in FINAL_PHASES:
                return False
        time.sleep(_POLL_SECONDS)
    return False
