"""A real master process with agents that train together, and what people see of the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agents.scripted_agent import ScriptedAgent
from holdfast_master.replay.typed_json import read_dataclass
from holdfast_wire import messages as wire
from holdfast_wire.messages import JobEvent, JobPhase
from masters.master_process import SPEC, MasterProcess, master_process

QUICK: dict[str, Any] = {
    "core": {"silence_seconds": 1.5, "lease_seconds": 1.0, "heartbeat_seconds": 0.2}
}
GENEROUS: dict[str, Any] = {
    **SPEC,
    "budgets": [
        {"kind": kind, "limit": 1000}
        for kind in ("FAILURES", "PREEMPTIONS", "RESCALES", "NO_PROGRESS")
    ],
}


@contextlib.contextmanager
def world(directory: Path, size: int = 2, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """Run a master with `size` agents that train together."""
    spec = SPEC | {"replicas": size}
    base = {"initial_spec": spec, "journal_dir": str(directory / "journal")}
    with (
        master_process(directory, **{**base, **settings}) as master,
        agents_of(directory, master.port, range(size)) as agents,
    ):
        master.wait_for(lambda: phase(master) is JobPhase.TRAINING)
        yield master, agents


@contextlib.contextmanager
def agents_of(directory: Path, port: int, ranks: Iterable[int]) -> Iterator[list[ScriptedAgent]]:
    """Connect an agent of each rank to the master at `port`, and wait until all have a world."""
    with contextlib.ExitStack() as stack:
        agents = [ScriptedAgent(directory, port, rank) for rank in ranks]
        for agent in agents:
            stack.callback(agent.close)
        for agent in agents:
            agent.wait_for(lambda agent=agent: agent.assignments)
        yield agents


def phase(master: MasterProcess) -> JobPhase:
    """Return the job's phase."""
    answer: JobPhase = master.ask("GetJob", wire.GetJobRequest()).status.phase
    return answer


def events(master: MasterProcess) -> list[JobEvent]:
    """Return all events so far."""
    return list(master.ask("ListEvents", wire.ListEventsRequest(limit=5000)).events)


def restarted(master: MasterProcess, agent: ScriptedAgent, reason: str = "test") -> None:
    """Have the workers restarted, and wait until the agent has its next round."""
    before = agent.round
    master.ask("RestartWorker", wire.RestartWorkerRequest(reason=reason))
    agent.wait_for(lambda: agent.round > before)


def spec_of(**changes: Any) -> wire.MasterSpec:
    """Return the tests' spec with changes."""
    return read_dataclass(wire.MasterSpec, SPEC | changes)
