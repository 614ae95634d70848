"""The systems under test: how each is started, found, hurt and ended.

Torchrun with its c10d rendezvous, as its documentation says to run an elastic job. Default: agent 0
hosts the store, every time-out is torch's own. Tuned: the waits as low as torchrun accepts (whole
seconds, above zero) without taking a healthy agent for dead, a store of its own for each round's
process group (the shared one breaks many recoveries), and the rendezvous store in a process
outside, as a careful user would run it: agent 0's death is the end of the job otherwise.

DLRover 0.6.1: its master and two ``dlrover-run`` agents, as its pods would run them. Default:
DLRover's own values. Tuned: its waits for more nodes as low as it accepts; what is left are
constants in its code (an agent asks for its world every 5 s). The master is the "local" one; both
masters share the rendezvous that is measured here.

Holdfast: ``holdfast run`` of a job of two replicas that goes on with one. Everything is its
default. The local runner replaces a lost node by itself, as the operator does in a cluster, so a
new agent is not started here but waited for.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness import launch
from bench.recovery import processes
from holdfast_cli.job_directory import process_started
from jobs.local_job import elastic_job

NODES = 2
"""Nodes of one worker each: what two cores carry without drowning the measurement."""
REPLACED_LIMIT_SECONDS = 60.0
"""How long the runner may take to start a lost node's new agent."""
COMMON_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # two ranks share two cores
    "GLOO_SOCKET_IFNAME": "lo",
}
"""For the agents of every system."""
TORCHRUN_TUNED = {
    "last_call_timeout": 1,
    "join_timeout": 60,
    "close_timeout": 1,
    "heartbeat_timeout": 1,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,
}
"""Seconds, but for the last, which is torchrun's own: with 2, an agent whose timer fires a little
early twice is taken for dead, and a newcomer starts a second world beside the running one."""
DLROVER_TUNED = {"lastcall_timeout": 1, "join_timeout": 60, "pend_timeout": 60}
"""Seconds. With 0 as last call every lone agent would start a world of its own."""
_STORE_HOST = """
import datetime, signal, sys, torch.distributed as dist
limit = datetime.timedelta(seconds=60)
store = dist.TCPStore(
    "127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False, timeout=limit
)
signal.pause()
"""
"""Hosts the rendezvous store until it is killed, in the Python of the system under test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a system needs to start its job."""

    python: str
    """The interpreter of the environment that holds the system and torch."""
    script: Path
    directory: Path
    """Log files, and the script's log and saves: on shared memory where there is any."""
    variant: str
    """"default", or "tuned": the system's own time-outs as low as it accepts."""
    restore: str
    """"torch" or "dcp"; "flash": Holdfast's own, with a script of its own."""
    collective_timeout_s: float | None
    """Deadline of the tuned script's collectives, seconds; None: torch's 30 min."""

    @property
    def log_directory(self) -> Path:
        """Return where the script's ranks write their steps."""
        return self.directory / "steps"

    def script_arguments(self) -> list[str]:
        """Return the script's command line, the same for every system."""
        arguments = [
            f"--log-dir={self.log_directory}",
            f"--saves-dir={self.directory / 'saves'}",
            f"--restore={self.restore}",
        ]
        if self.collective_timeout_s is not None:
            arguments.append(f"--collective-timeout={self.collective_timeout_s}")
        return arguments


class System(ABC):
    """One job of two nodes, run by one system.

    Everything it starts lives in the trial's sandbox and dies with it, so there is no ``stop``.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @abstractmethod
    def start(self) -> None:
        """Start the job; returns at once."""

    @abstractmethod
    def agent_of(self, worker: int) -> int:
        """Return the pid of the agent above the process ``worker``; LookupError if there is none.

        "Agent" is the process whose death, with all below it, is the loss of a node.
        """

    @abstractmethod
    def bring_back(self, lost: int, since: float) -> float:
        """Start a new agent in place of ``lost``, which was killed at ``since``.

        Returns the monotonic time at which its process began. A system that replaces nodes by
        itself only waits for that and says when it was.
        """

    @abstractmethod
    def ended(self) -> str | None:
        """Say why this job can never train again, or None while it still could."""

    def _spawn(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.setting.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )


class AgentPair(System):
    """Starts one agent per node and knows them as its children."""

    _agents: dict[int, subprocess.Popen[bytes]]

    @abstractmethod
    def agent_command(self, node: int) -> list[str]:
        """Return the command line of the agent of ``node``, script included."""

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return the variables that the agent of ``node`` needs."""
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
        self._spawn(name, command, COMMON_ENVIRONMENT)

    def _start_agent(self, node: int) -> subprocess.Popen[bytes]:
        environment = {**COMMON_ENVIRONMENT, **self.agent_environment(node)}
        return self._spawn(f"agent-{node}", self.agent_command(node), environment)


class Torchrun(AgentPair):
    """Two torchrun agents and a c10d rendezvous."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._port = launch.free_port()
        self._tuned = setting.variant == "tuned"

    def start(self) -> None:
        """Start the store's process where it is outside, then both agents."""
        if self._tuned:
            command = [self.setting.python, "-c", _STORE_HOST, str(self._port)]
            self.helper("store", command)
        super().start()

    def agent_command(self, node: int) -> list[str]:
        """Return the command of an elastic job of one to two nodes."""
        conf: dict[str, int] = {"is_host": int(node == 0 and not self._tuned)}
        if self._tuned:
            conf |= TORCHRUN_TUNED
        return [
            *(self.setting.python, "-m", "torch.distributed.run"),
            *("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-id=bench"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            "--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in conf.items()),
            "--local-addr=127.0.0.1",
            str(self.setting.script),
            *self.setting.script_arguments(),
        ]

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return the switch that gives each round a store of its own."""
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self._tuned else {}


class Dlrover(AgentPair):
    """One DLRover master, two agents."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._port = launch.free_port()

    def start(self) -> None:
        """Start the master and both agents; an agent waits until the master listens."""
        launch.hide_dlrover_directories()
        self.helper("master", launch.dlrover_master(self.setting.python, NODES, self._port))
        super().start()

    def agent_command(self, node: int) -> list[str]:
        """Return the command of an elastic job of one to two nodes."""
        command = [self.setting.python, "-m", "dlrover.trainer.torch.elastic_run"]
        command += ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=100"]
        if self.setting.variant == "tuned":
            conf = ",".join(f"{name}={value}" for name, value in DLROVER_TUNED.items())
            command.append(f"--rdzv-conf={conf}")
        return [*command, str(self.setting.script), *self.setting.script_arguments()]

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return the variables that DLRover's operator writes into a worker pod."""
        return launch.dlrover_variables(node, NODES, self._port)


class Holdfast(System):
    """One runner, which starts the master and one agent per replica as its children."""

    _runner: subprocess.Popen[bytes]

    def start(self) -> None:
        """Write the job file and run it in the foreground."""
        file = self.setting.directory / "job.yaml"
        file.write_text(json.dumps(self._job()))  # YAML includes JSON
        command = [self.setting.python, "-m", "holdfast_cli.main", "run", str(file)]
        environment = {"HOLDFAST_HOME": str(self.setting.directory / "home")}
        self._runner = self._spawn("runner", command, environment)

    def agent_of(self, worker: int) -> int:
        """Return the ancestor of ``worker`` that is the runner's child."""
        chain = processes.ancestors(worker)
        if self._runner.pid not in chain:
            raise LookupError(f"the worker {worker} does not descend from the runner")
        return chain[chain.index(self._runner.pid) - 1]

    def bring_back(self, lost: int, since: float) -> float:
        """Wait for the child that the runner has started since ``lost`` was killed."""
        until = time.monotonic() + REPLACED_LIMIT_SECONDS
        while time.monotonic() < until:
            children = psutil.Process(self._runner.pid).children()
            ticks = max((process_started(one.pid) or 0 for one in children), default=0)
            newest = ticks / os.sysconf("SC_CLK_TCK")  # on the monotonic clock
            if newest > since:
                return newest
            time.sleep(0.05)
        return time.monotonic()

    def ended(self) -> str | None:
        """Say so once the runner has exited: everything else has ended with it."""
        code = self._runner.poll()
        return None if code is None else f"`holdfast run` has exited with {code}"

    def _job(self) -> dict[str, Any]:
        script = [str(self.setting.script), *self.setting.script_arguments(), "--sdk"]
        job = elastic_job("bench", script, replicas=NODES)
        (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
        container["env"] = [{"name": n, "value": v} for n, v in sorted(COMMON_ENVIRONMENT.items())]
        return job
