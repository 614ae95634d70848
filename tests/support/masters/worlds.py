"""A real master process with agents that train together, and what people see of the job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agents.scripted_agent import ScriptedAgent
from holdfast_master.replay.typed_json import read_dataclass
from holdfast_wire.messages import (
    GetJobRequest,
    JobEvent,
    JobPhase,
    ListEventsRequest,
    MasterSpec,
)
from masters.master_process import SPEC, MasterProcess, master_process

QUICK: dict[str, Any] = {
    "core": {"silence_seconds": 1.5, "lease_seconds": 1.0, "heartbeat_seconds": 0.2}
}


@contextlib.contextmanager
def world(directory: Path, size: int = 2, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """Run a master with `size` agents that train together."""
    spec = SPEC | {"replicas": size}
    base = {"initial_spec": spec, "journal_dir": str(directory / "journal")}
    with master_process(directory, **{**base, **settings}) as master:
        agents = [ScriptedAgent(directory, master.port, rank) for rank in range(size)]
        try:
            for agent in agents:
                agent.wait_for(lambda agent=agent: agent.assignments)
            master.wait_for(lambda: phase(master) is JobPhase.TRAINING)
            yield master, agents
        finally:
            for agent in agents:
                agent.close()


def phase(master: MasterProcess) -> JobPhase:
    """Return the job's phase."""
    answer: JobPhase = master.ask("GetJob", GetJobRequest()).status.phase
    return answer


def events(master: MasterProcess) -> list[JobEvent]:
    """Return all events so far."""
    return list(master.ask("ListEvents", ListEventsRequest()).events)


def spec_of(**changes: Any) -> MasterSpec:
    """Return the tests' spec with changes."""
    return read_dataclass(MasterSpec, SPEC | changes)
