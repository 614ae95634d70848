"""An open incident: its evidence, its culprit, its times.

Belongs here: what is known of one interruption until its charge. Does not belong here: opening,
closing and charging (`incidents`).
"""

from __future__ import annotations

import dataclasses

from holdfast_master.decide.failure import (
    DEFAULT_RESPONSE,
    PLANNED,
    Evidence,
    EvidenceKind,
    Response,
    culprit,
)
from holdfast_master.job.world import World
from holdfast_wire.messages import BudgetKind, GoodputEntry, Incident

_SHOWN = 20


@dataclasses.dataclass(slots=True)
class Case:
    """One interruption of the training. Times are on the patient clock, s."""

    id: str
    best: Evidence
    opened_at: float
    opened_unix: float
    from_round: int
    broken: set[int]
    """Rounds that it has interrupted."""
    response: Response = DEFAULT_RESPONSE
    asked: bool = True
    """A person wanted it (only for a change of size)."""
    progressed: bool = True
    seen: list[str] = dataclasses.field(default_factory=list)
    count: int = 0
    involved: dict[int, float] = dataclasses.field(default_factory=dict)
    """Node ranks that are part of it, with the time of their first evidence."""
    agents: dict[int, str] = dataclasses.field(default_factory=dict)
    """Node ranks that are part of it, to the agent that was; where evidence named it."""
    replaced: set[int] = dataclasses.field(default_factory=set)
    """Node ranks that a failure rule has replaced."""
    lost: set[int] = dataclasses.field(default_factory=set)
    """Node ranks whose loss is part of it."""
    detection: float = 0.0
    to_round: int = 0
    decided_at: float | None = None
    respawned_at: float | None = None
    stepped_at: float | None = None
    reached: int = 0
    """Newest step that was completed before it."""
    members: tuple[int, ...] = ()
    """Node ranks of the interrupted world."""
    step_seconds: float = 0.0
    """A usual step of the interrupted world, s."""
    steps_redone: int = 0
    earlier: float = 0.0
    """Seconds of it that had passed when this master took it up from another."""
    broken_at: float | None = None
    """When the last world that it has interrupted stopped."""
    smooth: bool = False
    """All ranks saved and stopped together before the change."""
    terminal: str = ""
    """Why the job would have to end, as things stand; empty: it need not."""
    end_reason: str = ""
    given_up: str = ""
    """Who takes part in no further world, because it has no restarts left; empty: nobody."""

    @property
    def planned(self) -> bool:
        """Whether somebody wanted it and nothing has failed."""
        return self.best.kind in PLANNED

    @property
    def kind(self) -> EvidenceKind:
        """What the best evidence is."""
        return self.best.kind

    def remember(self, world: World, reached: int) -> None:
        """How far the interrupted world was."""
        self.reached = max(self.reached, reached)
        if world.training:
            self.members, self.step_seconds = tuple(world.places), world.step_seconds

    def involve(self, item: Evidence) -> None:
        """The node that the evidence is about is part of the incident."""
        if item.node_rank is not None:
            self.involved.setdefault(item.node_rank, item.at)
            if item.agent_id:
                self.agents.setdefault(item.node_rank, item.agent_id)
        if item.final and not self.given_up:
            self.given_up = f"the torchrun of node {item.node_rank} has no restarts left"

    def add(self, item: Evidence) -> bool:
        """Take one more piece of evidence; True: the culprit is another one now."""
        self.count += 1
        if len(self.seen) < _SHOWN:
            self.seen.append(item.text)
        if culprit((self.best, item)) is not item or item == self.best:
            return False
        self.best = item
        return True

    def fact(
        self, *, opened: bool, charged: BudgetKind | None, cost: tuple[GoodputEntry, ...]
    ) -> Incident:
        """The incident as the journal and people see it."""
        best = self.best
        return Incident(
            id=self.id,
            cause=best.kind.value,
            text=best.text,
            culprit_node="" if best.node_rank is None else str(best.node_rank),
            culprit_rank="" if best.rank is None else str(best.rank),
            charged=charged or BudgetKind.UNSPECIFIED,
            opened_unix=self.opened_unix,
            from_round=self.from_round,
            to_round=self.to_round,
            decided_seconds=self.since(self.decided_at),
            respawned_seconds=self.since(self.respawned_at),
            first_step_seconds=self.since(self.stepped_at),
            detection_seconds=self.detection,
            steps_redone=self.steps_redone,
            open=opened,
            cost=cost,
            evidence=tuple(self.seen),
        )

    def since(self, at: float | None) -> float:
        """Seconds from its opening to a time of this master's; 0 for None."""
        return 0.0 if at is None else max(0.0, at - self.opened_at + self.earlier)
