"""Starts of each way: `holdfast run`, torchrun's agents, or replica groups of torchft.

Belongs here: commands, and what keeps killed ranks coming. Does not belong here: what is killed and
when (`kills`). All have four ranks on this machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bench.harness import launch
from bench.recovery.systems import (
    AgentPair,
    Holdfast,
    Setting,
    Torchrun,
)
from bench.replicas import results as r

RANKS: Final = 4
_JOIN_SECONDS: Final = 300
"""For torchrun's four agents to meet: on a busy machine they need more than a minute."""
_LIGHTHOUSE: Final = """
import signal, sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind=f"127.0.0.1:{sys.argv[1]}", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=10,
    heartbeat_timeout_ms=1000,
)
signal.pause()
"""
"""torchft's, tuned: a look each 10 ms (100 by default), 1 s without a heartbeat (5 s), and 1 s for
a replica that does not come (60 s): so long it waits for one that was killed. With 0.1 s it leaves
out replicas that live and are late on a busy machine; none trains with all others for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Setting):
    """What a way's job is started with."""

    shards: int
    pace_ms: float
    micro_batches: int
    """Of a step in the whole job."""
    model_mb: float = 0.0
    loop: str = field(default="world")

    def script_arguments(self) -> list[str]:
        """Return the script's command line."""
        arguments = Setting.script_arguments(self)
        arguments += [f"--loop={self.loop}", f"--shards={self.shards}"]
        arguments += [f"--pace-ms={self.pace_ms}", f"--model-mb={self.model_mb}"]
        return [*arguments, f"--micro-batches={self.micro_batches}"]


class FourNodes(Holdfast):
    """`holdfast run` of four nodes with a rank each; no budget of failures ends it."""

    setting: Start

    def _job(self) -> dict[str, Any]:
        job = super()._job()
        budgets = {"failures": {"limit": 10_000}, "noProgressRestarts": {"limit": 1_000}}
        job["spec"] |= {"replicas": RANKS, "failurePolicy": {"budgets": budgets}}
        if self.setting.loop == "replicas":
            shards = self.setting.shards
            job["spec"] |= {"minReplicas": shards, "replicaPolicy": {"nodesPerReplica": shards}}
        container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
        container["command"] = [one for one in container["command"] if one != "--sdk"]
        return job


class FourAgents(Torchrun):
    """Torchrun's four agents of a rank each, with `bench.recovery`'s tuning."""

    def start(self) -> None:
        """Start the store's process, then all agents."""
        super().start()
        self._agents |= {node: self._start_agent(node) for node in range(len(self._agents), RANKS)}

    def agent_command(self, node: int) -> list[str]:
        """Return the command of an elastic job of one to four nodes."""
        more = ["--nnodes=4:4", "--max-restarts=10000", "--monitor-interval=0.1"]
        kept = [
            one.replace("join_timeout=60", f"join_timeout={_JOIN_SECONDS}")
            for one in super().agent_command(node)
            if not one.startswith(("--nnodes=", "--max-restarts="))
        ]  # fmt: skip
        at = kept.index("torch.distributed.run") + 1
        return [*kept[:at], *more, *kept[at:]]


class OneAgent(Torchrun):
    """One agent of torchrun with all four ranks: no other agent has to be told."""

    def start(self) -> None:
        """Start it."""
        self._agents = {0: self._start_agent(0)}

    def agent_command(self, node: int) -> list[str]:
        """Return the command of a job on one node."""
        del node
        return [
            *(self.setting.python, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={RANKS}", "--max-restarts=10000", "--monitor-interval=0.1"),
            *(str(self.setting.script), *self.setting.script_arguments()),
        ]


class ReplicaGroups(AgentPair):
    """Replica groups of torchft, each a process that is started again when it has ended."""

    def start(self) -> None:
        """Start its lighthouse, then all groups."""
        self._port, self._agents = launch.free_port(), {}
        self.helper("lighthouse", [self.setting.python, "-c", _LIGHTHOUSE, str(self._port)])
        for group in range(RANKS):
            threading.Thread(target=self._keep, args=(group,), daemon=True).start()

    def _keep(self, group: int) -> None:
        while True:
            self._agents[group] = self._start_agent(group)
            self._agents[group].wait()

    def agent_command(self, node: int) -> list[str]:
        """Return the script's command."""
        del node
        return [self.setting.python, str(self.setting.script), *self.setting.script_arguments()]

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return the lighthouse's address, and the group's number."""
        address = f"http://127.0.0.1:{self._port}"
        numbers = {"REPLICA": str(node), "REPLICAS": str(RANKS), "RANK": str(node)}
        return {"TORCHFT_LIGHTHOUSE": address, **numbers}

    def ended(self) -> str | None:
        """Return None: groups are started again."""
        return None


@dataclass(frozen=True, slots=True)
class Way:
    """How a way is started."""

    system: Callable[[Any], Holdfast | AgentPair]
    environment: str
    """Of `bench.harness.venvs`."""
    loop: str
    restore: str = "torch"
    variant: str = "tuned"
    collective_timeout_s: float | None = None


WAYS: Final[Mapping[str, Way]] = {
    r.REPLICAS: Way(FourNodes, "holdfast", "replicas"),
    r.RESTART: Way(FourNodes, "holdfast", "world", restore="flash"),
    r.TORCHRUN: Way(FourAgents, "torchrun", "world", collective_timeout_s=5.0),
    r.TORCHRUN_ONE: Way(OneAgent, "torchrun", "world", collective_timeout_s=5.0),
    r.TORCHFT: Way(ReplicaGroups, "torchft", "torchft"),
    r.NIGHTLY: Way(ReplicaGroups, "torchft nightly", "torchft"),
}
