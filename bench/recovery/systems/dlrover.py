"""DLRover 0.6.1: its master and two ``dlrover-run`` agents, as its pods would run them.

Default: DLRover's own values. Tuned: its waits for more nodes as low as it accepts; what is left
are constants in its code (an agent asks for its world every 5 s). The master is the "local" one,
which has no cluster to watch; both masters share the rendezvous that is measured here.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.recovery.systems.agents import AgentPair, free_port
from bench.recovery.systems.contract import NODES, Setting

TUNED = {"lastcall_timeout": 1, "join_timeout": 60, "pend_timeout": 60}
"""Seconds. With 0 as last call every lone agent would start a world of its own."""

_FIXED_DIRECTORIES = (Path("/tmp/dlrover"), Path("/tmp/ckpt_sock"))  # noqa: S108 - its choice
_JOB = "bench"


class Dlrover(AgentPair):
    """One DLRover master, two agents."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._port = free_port()

    def start(self) -> None:
        """Start the master and both agents; an agent waits until the master listens."""
        _hide_fixed_directories()
        master = ("-u", "-m", "dlrover.python.master.main", "--platform", "local")
        options = ("--job_name", _JOB, "--node_num", str(NODES), "--port", str(self._port))
        self.helper("master", [self.setting.python, *master, *options])
        super().start()

    def agent_command(self, node: int) -> list[str]:
        """Return the command of an elastic job of one to two nodes."""
        command = [self.setting.python, "-m", "dlrover.trainer.torch.elastic_run"]
        command += ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=100"]
        if self.setting.variant == "tuned":
            conf = ",".join(f"{name}={value}" for name, value in TUNED.items())
            command.append(f"--rdzv-conf={conf}")
        return [*command, str(self.setting.script), *self.setting.script_arguments()]

    def agent_environment(self, node: int) -> Mapping[str, str]:
        """Return what DLRover's operator writes into a worker pod."""
        return {
            "DLROVER_MASTER_ADDR": f"127.0.0.1:{self._port}",
            "ELASTIC_JOB_NAME": _JOB,
            "NODE_ID": str(node),
            "NODE_RANK": str(node),
            "NODE_NUM": str(NODES),
            "POD_NAME": f"{_JOB}-{node}",
            "POD_IP": "127.0.0.1",
        }


def _hide_fixed_directories() -> None:
    """Put an empty tmpfs of this sandbox over the paths that DLRover uses on every machine."""
    for directory in _FIXED_DIRECTORIES:
        directory.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "bench", str(directory)]
        subprocess.run(mount, check=True, capture_output=True, timeout=10)
