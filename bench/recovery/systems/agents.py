"""A system of two agents that the benchmark starts itself, one per node."""

import os
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from bench.recovery import processes
from bench.recovery.systems.contract import NODES, System

COMMON_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # two ranks share two cores
    "GLOO_SOCKET_IFNAME": "lo",
}
"""For the agents of every system."""


def free_port() -> int:
    """Return a TCP port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class AgentPair(System):
    """Starts one agent per node and knows them as its children."""

    _agents: dict[int, subprocess.Popen[bytes]]

    @abstractmethod
    def agent_command(self, node: int) -> list[str]:
        """Return the command line of the agent of ``node``, script included."""

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return what the agent of ``node`` needs in its environment."""
        return {}

    def start(self) -> None:
        """Start both agents at once."""
        self._agents = {node: self._start_agent(node) for node in range(NODES)}

    def agent_of(self, worker: int) -> int:
        """Return the agent among the ancestors of ``worker``."""
        pids = {agent.pid for agent in self._agents.values()}
        for pid in processes.ancestors(worker):
            if pid in pids:
                return pid
        raise LookupError(f"no agent above the worker {worker}")

    def bring_back(self, lost: int, since: float) -> float:
        """Start the agent of that node once more, with the same command."""
        node = next(node for node, agent in self._agents.items() if agent.pid == lost)
        begun = time.monotonic()
        self._agents[node] = self._start_agent(node)
        return begun

    def ended(self) -> str | None:
        """Say so once no agent is left that could start workers."""
        codes = {node: agent.poll() for node, agent in self._agents.items()}
        if any(code is None for code in codes.values()):
            return None
        return "every agent has exited: " + ", ".join(
            f"node {node} with {code}" for node, code in sorted(codes.items())
        )

    def helper(self, name: str, command: Sequence[str]) -> None:
        """Start a process that belongs to the job but to no node (a master, a store)."""
        self._spawn(name, command, {})

    def _start_agent(self, node: int) -> subprocess.Popen[bytes]:
        return self._spawn(f"agent-{node}", self.agent_command(node), self.agent_environment(node))

    def _spawn(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.setting.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **COMMON_ENVIRONMENT, **environment},
                start_new_session=True,
            )
