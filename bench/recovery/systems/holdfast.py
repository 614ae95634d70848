"""Holdfast on this machine: ``holdfast run`` of a job of two replicas that goes on with one.

Everything is Holdfast's default. The local runner replaces a lost node by itself, as the operator
does in a cluster, so a new agent is not started here but waited for.
"""

import json
import os
import subprocess
import time
from typing import Any

from bench.recovery import processes
from bench.recovery.systems.agents import COMMON_ENVIRONMENT
from bench.recovery.systems.contract import NODES, Setting, System

REPLACED_LIMIT_SECONDS = 60.0
"""How long the runner may take to start a lost node's new agent."""


class Holdfast(System):
    """One runner, which starts the master and one agent per replica as its children."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._runner: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Write the job file and run it in the foreground."""
        file = self.setting.directory / "job.yaml"
        file.write_text(json.dumps(self._job()))  # YAML includes JSON
        command = [self.setting.python, "-m", "holdfast_cli.main", "run", str(file)]
        with (self.setting.directory / "runner.log").open("ab") as log:
            self._runner = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HOLDFAST_HOME": str(self.setting.directory / "home")},
                start_new_session=True,
            )

    def agent_of(self, worker: int) -> int:
        """Return the ancestor of ``worker`` that is the runner's child."""
        chain = processes.ancestors(worker)
        if self._running.pid not in chain:
            raise LookupError(f"the worker {worker} does not descend from the runner")
        return chain[chain.index(self._running.pid) - 1]

    def bring_back(self, lost: int, since: float) -> float:
        """Wait for the child that the runner has started since ``lost`` was killed."""
        until = time.monotonic() + REPLACED_LIMIT_SECONDS
        while time.monotonic() < until:
            children = [one for one in processes.everybody() if one.parent == self._running.pid]
            newest = max((one.started_at for one in children), default=0.0)
            if newest > since:
                return newest
            time.sleep(0.05)
        return time.monotonic()

    def ended(self) -> str | None:
        """Say so once the runner has exited: everything else has ended with it."""
        code = self._running.poll()
        return None if code is None else f"`holdfast run` has exited with {code}"

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._runner is None:
            raise RuntimeError("start() comes first")
        return self._runner

    def _job(self) -> dict[str, Any]:
        arguments = [str(self.setting.script), *self.setting.script_arguments(), "--sdk"]
        worker = {
            "name": "worker",
            "image": "none",
            "command": ["holdfast-run", "--nproc-per-node=1", *arguments],
            "env": [{"name": n, "value": v} for n, v in sorted(COMMON_ENVIRONMENT.items())],
        }
        return {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "bench"},
            "spec": {
                "replicas": NODES,
                "minReplicas": 1,
                "worker": {"template": {"spec": {"containers": [worker]}}},
            },
        }
