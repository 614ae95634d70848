"""The check of nodes that are about to join, as far as only this master knows it.

Belongs here: the open check, its nodes, the reports of its open round. Does not belong here: rounds
and verdicts (`policies.preflight`), what follows from them (`job.health.preflight`), verdicts that
survive the master (`job_state`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.health import OFF
from holdfast_master.policies.preflight.figures import FigureReport
from holdfast_master.policies.preflight.rounds import Check
from holdfast_wire.messages import CheckListening, HealthMode, MasterSpec


def preflight_mode(spec: MasterSpec | None) -> HealthMode:
    """Return `spec.health.preflight.mode`; a spec without one checks nobody."""
    policy = spec.health.preflight if spec is not None and spec.health is not None else None
    return HealthMode.UNSPECIFIED if policy is None else policy.mode


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedNode:
    """One agent that takes part in a check."""

    rank: int
    agent_id: str


@dataclasses.dataclass(slots=True, eq=False)
class OpenCheck:
    """A check that is under way."""

    check: Check
    until: float
    """Patient clock at which it ends, done or not, s."""
    nodes: dict[str, CheckedNode]
    """By the names that the check has for them, partners included."""
    reports: dict[str, FigureReport] = dataclasses.field(default_factory=dict)
    """Of the open round, by name."""
    places: dict[str, CheckListening] = dataclasses.field(default_factory=dict)
    """Where nodes of the open round listen, by name."""
    seconds: float = 0.0
    """Time that the agents have in the open round, s."""

    def name_of(self, rank: int, agent_id: str) -> str:
        """Return the name of an agent in this check; empty: it takes no part."""
        found = CheckedNode(rank, agent_id)
        return next((name for name, node in self.nodes.items() if node == found), "")


@dataclasses.dataclass(slots=True, eq=False)
class Preflight:
    """Checks of this master, one at a time."""

    open: OpenCheck | None = None
    begun: int = 0
    """Checks so far."""
    gather_until: float | None = None
    """Patient clock until which nodes wait for others to be checked with, s; None: nobody does."""

    looked_after: int | None = None
    """Round after which suspect nodes were looked for; None: not yet."""
    suspects: dict[CheckedNode, str] = dataclasses.field(default_factory=dict)
    """Agents that were checked, and are to be checked again; with the reason."""

    def has_work(self, spec: MasterSpec | None) -> bool:
        """Return whether nodes are to be checked, or something of earlier checks is left."""
        left = self.open is not None or self.gather_until is not None or bool(self.suspects)
        return left or preflight_mode(spec) not in OFF

    def checks(self, rank: int, agent_id: str) -> bool:
        """Return whether this agent is being checked now; a partner is not."""
        if self.open is None:
            return False
        name = self.open.name_of(rank, agent_id)
        return bool(name) and name not in self.open.check.trusted()
