"""`make demo`: the example on two local nodes; one worker and then one whole node are killed.

A director on a thread of its own, which uses only the master's public API and SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast_cli.client import JobClient
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import JobHome, find_job
from holdfast_cli.live_view import FINAL_PHASES, View
from holdfast_cli.output import say
from holdfast_cli.runner.processes import descendants
from holdfast_cli.runner.start import RunOptions, run_job
from holdfast_wire.messages import GetJobRequest, JobStatus, ListNodesRequest, NodeInfo, NodeState

_JOB_FILE = Path("examples/00-demo.yaml")
_KILL_WORKER_AT = 100
_KILL_NODE_AT = 220
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 300.0


class Demo:
    """Waits for a step, then kills; its messages appear in the job's view."""

    def __init__(self, home: JobHome, view: View, ended: Callable[[], bool]) -> None:
        self._home = home
        self._view = view
        self._ended = ended

    def play(self) -> None:
        """Kill a worker at one step and a node at a later one."""
        with contextlib.suppress(_JobEndedError):
            self._wait(lambda status: status.step >= _KILL_WORKER_AT)
            self._kill_worker()
            self._wait(lambda status: status.step >= _KILL_NODE_AT)
            self._kill_node()

    def _kill_worker(self) -> None:
        node = self._active_node()
        victim = node.ranks[0]
        self._view.note(f"demo: kill -9 of rank {victim.rank} (pid {victim.pid})")
        _kill([victim.pid])

    def _kill_node(self) -> None:
        node = self._active_node()
        self._view.note(
            f"demo: kill -9 of node {node.node_rank}: its agent (pid {node.agent_pid}) and "
            "everything below it"
        )
        _kill([node.agent_pid, *descendants(node.agent_pid)])

    def _active_node(self) -> NodeInfo:
        with JobClient(self._home) as client:
            nodes = client.call(ListNodesRequest()).nodes
        active = [node for node in nodes if node.state is NodeState.ACTIVE and node.ranks]
        if not active:
            raise _JobEndedError
        last: NodeInfo = max(active, key=lambda node: node.base_rank)
        return last

    def _wait(self, reached: Callable[[JobStatus], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and not self._ended():
            with contextlib.suppress(CliError), JobClient(self._home) as client:
                status = client.call(GetJobRequest()).status
                if status.phase in FINAL_PHASES:
                    raise _JobEndedError
                if reached(status):
                    return
            time.sleep(_POLL_SECONDS)
        raise _JobEndedError


class _JobEndedError(Exception):
    """The job ended: there is nothing left to kill."""


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Run the demo from the root of the repository."""
    try:
        code = run_job(_JOB_FILE, RunOptions(director=lambda *job: Demo(*job).play()), os.environ)
    except CliError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        code = error.exit_code
    for line in _last_words(find_job(os.environ, "demo")) if code == 0 else ():
        say(line)
    sys.exit(code)


def _last_words(home: JobHome) -> list[str]:
    """Return the training script's lines about its result."""
    return [
        line
        for log in sorted(home.logs.glob("demo-worker-*.log"))
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith(("validation loss", "unigram entropy"))
    ]


if __name__ == "__main__":
    main()
