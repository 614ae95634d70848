"""Open incidents: evidence, culprits, times."""

from __future__ import annotations

import dataclasses

from holdfast_master.job.state.world import World
from holdfast_master.policies import failure
from holdfast_wire.messages import BudgetKind, FailureAction, GoodputEntry, Incident

_SHOWN = 20
_REPLACE = frozenset({FailureAction.REPLACE_POD, FailureAction.REPLACE_ON_OTHER_NODE})


@dataclasses.dataclass(slots=True)
class OpenIncident:
    """One interruption of the training. Times are on the patient clock, s."""

    id: str
    best: failure.Evidence
    opened_at: float
    opened_unix: float
    from_round: int
    broken: set[int]
    """Rounds that it has interrupted."""
    response: failure.Response = failure.DEFAULT_RESPONSE
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
    unseen: bool = False
    """The world that follows runs, and no rank reports when it steps."""
    guessed: bool = False
    """The time of the first step is a guess, from collectives."""
    reached: int = 0
    """Newest step that was completed before it."""
    began: int = 0
    """First step of the interrupted world; 0: not known."""
    members: tuple[int, ...] = ()
    """Node ranks of the interrupted world."""
    step_seconds: float = 0.0
    """A usual step of the interrupted world, s."""
    steps_redone: int = 0
    earlier: float = 0.0
    """Seconds of it that had passed when this master took it up from another."""
    broken_at: float | None = None
    """Time at which the last world that it interrupted stopped."""
    smooth: bool = False
    """All ranks saved and stopped together before the change."""
    terminal: str = ""
    """Reason why the job would have to end, as things stand; empty: it need not."""
    end_reason: str = ""
    lost_replicas: set[int] = dataclasses.field(default_factory=set)
    """Numbers of the replicas whose processes it ended."""
    going_replicas: int | None = None
    """Fewest replicas that trained on at a time; None: no world has ended by it yet."""
    given_up: str = ""
    """The torchrun that has no restarts left and takes part in no further world; empty: none."""

    @property
    def planned(self) -> bool:
        """Whether it was wanted and nothing has failed."""
        return self.best.kind in failure.PLANNED

    @property
    def kind(self) -> failure.EvidenceKind:
        """The kind of the best evidence."""
        return self.best.kind

    @property
    def to_replace(self) -> int | None:
        """The culprit's node rank where a rule has it replaced and that is still to do."""
        rank = self.best.node_rank
        due = self.response.action in _REPLACE and rank not in self.replaced
        return rank if due else None

    def remember(self, world: World, reached: int) -> None:
        """Note the progress of the interrupted world."""
        self.reached = max(self.reached, reached)
        if world.training:
            self.began = world.first_step
            self.members, self.step_seconds = tuple(world.places), world.step_seconds

    def note_replicas(self, world: World) -> None:
        """Note which replicas of a world it ends, and how many train on."""
        if not world.replicas:
            return
        going = world.undisturbed()
        trains = lost = 0
        for number, members in world.by_replica.items():
            if world.finished.issuperset(members):
                continue
            if not going.issuperset(members):
                self.lost_replicas.add(number)
                lost += 1
            elif world.training or world.stepped.issuperset(members):
                trains += 1
        if lost or self.going_replicas is None:
            known = trains if self.going_replicas is None else self.going_replicas
            self.going_replicas = min(known, trains)

    @property
    def others_train(self) -> bool:
        """Whether other replicas trained on all the while: it did not stop the job."""
        return bool(self.lost_replicas and self.going_replicas)

    def involve(self, item: failure.Evidence) -> None:
        """The node that the evidence is about is part of the incident."""
        if item.node_rank is not None:
            self.involved.setdefault(item.node_rank, item.at)
            if item.agent_id:
                self.agents.setdefault(item.node_rank, item.agent_id)
        if item.final and not self.given_up:
            self.given_up = f"the torchrun of node {item.node_rank} has no restarts left"

    def add(self, item: failure.Evidence) -> bool:
        """Take one more piece of evidence; True: the culprit is another one now."""
        self.count += 1
        if len(self.seen) < _SHOWN:
            self.seen.append(item.text)
        if failure.culprit((self.best, item)) is not item or item == self.best:
            return False
        self.best = item
        return True

    def fact(
        self,
        *,
        opened: bool = True,
        charged: BudgetKind | None = None,
        cost: tuple[GoodputEntry, ...] = (),
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
            first_step_unseen=self.unseen,
            first_step_guessed=self.guessed,
            memory_limit_bytes=best.memory_limit,
            lost_replicas=tuple(sorted(self.lost_replicas)),
            going_replicas=self.going_replicas or 0,
        )

    def since(self, at: float | None) -> float:
        """Seconds from its opening to a time of this master's; 0 for None."""
        return 0.0 if at is None else max(0.0, at - self.opened_at + self.earlier)


@dataclasses.dataclass(slots=True, eq=False)
class Incidents:
    """The incidents that are not closed."""

    current: OpenIncident | None = None
    """The incident that the job has not recovered from; None: there is none."""
    cooling: list[OpenIncident] = dataclasses.field(default_factory=list)
    """Incidents whose new world trains, while evidence still counts."""
    fruitless: int = 0
    """Failures in a row that were charged by this master without a new step between them."""

    @property
    def current_id(self) -> str:
        """The id of the current incident; empty: there is none."""
        return "" if self.current is None else self.current.id

    def open(self) -> list[OpenIncident]:
        """Every incident that is not closed, the oldest first."""
        return [*self.cooling, *([self.current] if self.current else [])]

    def cool(self, incident: OpenIncident) -> None:
        """Note that the world which follows the current incident trains."""
        self.current = None
        self.cooling.append(incident)

    def forget(self, incident: OpenIncident) -> None:
        """Forget an incident that is closed."""
        if self.current is incident:
            self.current = None
        else:
            self.cooling.remove(incident)
