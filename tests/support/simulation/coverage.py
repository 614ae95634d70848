"""Count of the (phase, input) pairs and the steps of the state machine that runs have seen.

Belongs here: counting, and what cannot be reached, with the reason. Does not belong here: runs.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Mapping

from holdfast_master import core, inputs
from holdfast_master.job.requests import user_requests
from holdfast_master.job.state import context
from holdfast_master.job.state.phases import ENDED, TABLE, Trigger
from holdfast_wire.messages import JobPhase

Pair = tuple[str, str]

MESSAGES = tuple(kind.__name__ for kind in inputs.AgentMessage.__args__)
REQUESTS = tuple(kind.__name__ for kind in user_requests._HANDLERS)
ORDERS = tuple(kind.__name__ for kind in inputs.SyncMessage.__args__)
_CARRIERS = {"Received": MESSAGES, "OperatorMessage": ORDERS, "UserCall": REQUESTS}
KINDS = tuple(
    name for kind in core._INPUTS for name in _CARRIERS.get(kind.__name__, (kind.__name__,))
)
"""Every kind of input: messages of agents and operator and users' requests by their own names."""

_SHELL = "made by the shell's servers, not by anything that the simulation has"
_UNUSED: Mapping[str, str] = {
    "PeerRefused": _SHELL,
    "CheckListening": "no simulated job checks its nodes before they join",
    "NodeChecked": "no simulated job checks its nodes before they join",
    "ClusterStrikes": "the simulated operator has one job",
}
UNREACHABLE: Mapping[Pair, str] = {
    (phase.name, kind): why for phase in JobPhase for kind, why in _UNUSED.items()
}
"""(phase, kind of input) that no run can come to, and why."""
UNASKED: Mapping[JobPhase, str] = {
    **dict.fromkeys(ENDED, "the master leaves within the seconds that its agents need to go"),
    JobPhase.UNSPECIFIED: "no job is ever in it",
}
"""Phases whose pairs are reached by chance only, and why that is enough."""
UNREACHABLE_STEPS: Mapping[Pair, str] = {
    ("TRAINING", "STEPPED"): "only a world that starts is moved; the row makes a repeat no fault",
}
"""(phase, trigger) of the table that no run can come to, and why."""


class Coverage:
    """Counts of the inputs and steps seen so far, by phase."""

    def __init__(self) -> None:
        self.pairs: collections.Counter[Pair] = collections.Counter()
        self.steps: collections.Counter[Pair] = collections.Counter()

    def add(self, seen: Mapping[tuple[JobPhase, str], int]) -> None:
        """Count a run's inputs."""
        for (phase, kind), count in seen.items():
            self.pairs[phase.name, kind] += count

    @contextlib.contextmanager
    def steps_counted(self) -> Iterator[None]:
        """Count every step of the state machine meanwhile."""
        right = vars(context)["advance"]

        def advance(phase: JobPhase, trigger: Trigger, *more: object) -> JobPhase:
            self.steps[phase.name, trigger.name] += 1
            following: JobPhase = right(phase, trigger, *more)
            return following

        vars(context)["advance"] = advance
        try:
            yield
        finally:
            vars(context)["advance"] = right

    def missing(self) -> list[Pair]:
        """Reachable pairs and steps that were not seen."""
        phases = [phase.name for phase in JobPhase if phase not in UNASKED]
        wanted = [(phase, kind) for phase in phases for kind in KINDS]
        pairs = [p for p in wanted if p not in self.pairs and p not in UNREACHABLE]
        table = [(phase.name, trigger.name) for phase, trigger in TABLE]
        return pairs + [s for s in table if s not in self.steps and s not in UNREACHABLE_STEPS]

    def impossible(self) -> list[Pair]:
        """Return the pairs and steps that were seen although listed as unreachable."""
        pairs = [pair for pair in self.pairs if pair in UNREACHABLE]
        return pairs + [step for step in self.steps if step in UNREACHABLE_STEPS]

    def summary(self) -> str:
        """One line."""
        return (
            f"{len(self.pairs)} pairs of phase and input, {len(self.steps)} steps of {len(TABLE)}"
        )
