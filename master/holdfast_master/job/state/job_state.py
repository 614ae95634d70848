"""The durable state of a job: everything that its journal rebuilds."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Final

from holdfast_master.policies.data.ledger import Ledger
from holdfast_master.policies.goodput import Totals
from holdfast_wire import messages as wire
from holdfast_wire.reasons import PhaseReason

DRAINING: Final = "draining"
FINISHED: Final = "finished"
RELEASED: Final = "released"
REPLACED: Final = "replaced"
PROMISED: Final = "promised"
KEPT_TRIALS: Final = 32
"""Newest rounds that a node left for a slow rank."""
RENEW: Final = "renew"
ANSWERED: Final = frozenset({"leave", "replace", "stacks", "stop", RENEW})
"""Kinds of commands whose end is told, or is the node's; of others only the ids are kept."""
KEPT_ROUNDS: Final = 16
"""Ended and trained rounds whose numbers are kept."""


@dataclasses.dataclass(slots=True, kw_only=True)
class JobState:
    """Everything that the journal rebuilds. Two folds of the same records are equal."""

    event_limit: int
    incident_limit: int

    sequence: int = 0
    job_seconds: float = 0.0
    """The job's own time at the newest record, s."""
    unix_time: float = dataclasses.field(default=0.0, compare=False)
    """Wall clock at the newest record."""
    epoch: int = 0
    started_unix: float = 0.0
    finished_unix: float = 0.0
    spec: wire.MasterSpec | None = None
    phase: wire.JobPhase = wire.JobPhase.WAITING
    reason: str = PhaseReason.WAITING_FOR_SPEC
    text: str = ""
    active_since: float = 0.0
    """The job's own time when it last began or was resumed, s."""
    stop: wire.StopRequested | None = None

    nodes: dict[int, wire.NodeJoined] = dataclasses.field(default_factory=dict)
    departed: dict[int, wire.NodeJoined] = dataclasses.field(default_factory=dict)
    """The last agent of each node rank that went."""
    draining: set[int] = dataclasses.field(default_factory=set)
    preempted: set[int] = dataclasses.field(default_factory=set)
    """Those of them that are taken away: nobody in charge of the job asked for it."""
    finished: set[int] = dataclasses.field(default_factory=set)
    """Nodes of the assigned world whose processes ended with exit code 0, gone or not."""
    released: set[int] = dataclasses.field(default_factory=set)
    dismissed: dict[str, str] = dataclasses.field(default_factory=dict)
    """Ids of agents that must not return: released, or replaced by another."""
    promised: set[str] = dataclasses.field(default_factory=set)
    """Ids of agents that are to leave, as an earlier master promised, and that have not come."""
    excluded: dict[str, str] = dataclasses.field(default_factory=dict)
    """Kubernetes nodes that replacements avoid, with the reason."""

    judged: dict[int, wire.NodeJudged] = dataclasses.field(default_factory=dict)
    """The newest verdict on each node rank that was checked before it joined a world."""
    reference_levels: dict[str, wire.ReferenceLevel] = dataclasses.field(default_factory=dict)
    """Figures of healthy nodes in checks, by resource and kind of hardware."""
    node_references: dict[str, wire.NodeReferences] = dataclasses.field(default_factory=dict)
    """Figures of each node in its own last check."""

    strikes: list[wire.NodeStruck] = dataclasses.field(default_factory=list)
    """The newest things that spoke against hosts, oldest first; some were taken back."""
    straggler_trials: dict[int, wire.StragglerTrial] = dataclasses.field(default_factory=dict)
    """Rounds that a node left for a slow rank, and what that has shown."""

    round: int = 0
    world: wire.WorldDecided | None = None
    """The newest world; without a store address its assignments are not out."""
    assigned: wire.WorldDecided | None = None
    """The newest world whose assignments are out."""
    vacant: int = 0
    """Places of the assigned world that nodes left and nobody has taken since."""
    roster: wire.OuterRoster | None = None
    """The newest roster of replicas; None: there has been none."""
    sync: wire.SyncChosen | None = None
    """The newest choice of replicas that switch; None: those of the newest world made none."""
    last_replica: int = 0
    """The greatest number that a replica was given; 0: none was."""
    assigned_replicas: int = 0
    """Wanted replicas when it was assigned."""
    training: bool = False
    """All ranks of the assigned world completed a step (or it cannot be seen)."""
    ended: bool = True
    """The assigned world is over."""
    best_step: int = 0
    """Newest step that was ever known to be completed."""
    failed_step: int | None = None
    """Newest step before any failure so far; None: nothing has failed yet."""
    ended_steps: dict[int, int] = dataclasses.field(default_factory=dict)
    trained_rounds: dict[int, bool] = dataclasses.field(default_factory=dict)
    steps_guessed: bool = False
    """Steps of the script are guessed from its collectives: without one, a world made none."""
    guessed_round: int = 0
    """The newest round with a guessed step; 0: there is none."""
    stepless_rounds: dict[int, bool] = dataclasses.field(default_factory=dict)
    """Ended rounds of such a script that had no guessed step."""

    charges: list[wire.BudgetCharge] = dataclasses.field(default_factory=list)
    incidents: dict[str, wire.Incident] = dataclasses.field(default_factory=dict)
    incident_count: int = 0
    events: collections.deque[wire.JobEvent] = dataclasses.field(default_factory=collections.deque)
    """The newest, as many as `event_limit`."""
    event_sequence: int = 0
    commands: dict[int, wire.CommandIssued] = dataclasses.field(default_factory=dict)
    next_command_id: int = 1
    goodput: dict[int, Totals] = dataclasses.field(default_factory=dict)
    counted_unix: dict[int, float] = dataclasses.field(default_factory=dict)
    """Unix time up to which each node's goodput is in it; of a node that has none, its coming."""

    checkpoint: wire.CheckpointCommitted | None = None
    """The newest version that was announced durable."""
    schedule: wire.ScheduleConfirmed | None = None
    """The newest distance between checkpoints that all ranks which save took up; of round 0 once
    another replica saves."""
    tier_failures: dict[wire.Tier, int] = dataclasses.field(default_factory=dict)
    """Failures by the tier that the job went back to."""
    trained_seconds: float = 0.0
    """Of its own time in which worlds trained that are over."""
    trains_since: float | None = None
    """The job's own time since which the assigned world trains; None: it does not."""

    ledgers: dict[str, Ledger] = dataclasses.field(default_factory=dict)
    """Shards of each dataset that is read by leases, by name."""

    goodput_assumed: bool = False
    """A world ran whose steps nobody reported: its time counts as productive, and may not be."""
    assumed_round: int = 0
    """The only such world so far, by its round; 0: there is none, or more than one."""

    restarts_in_place: int = 0
    nodes_replaced: int = 0
    nodes_disrupted: int = 0
    rescales: int = 0

    def __post_init__(self) -> None:
        self.events = collections.deque(self.events, maxlen=self.event_limit)

    @property
    def named_replicas(self) -> tuple[int, ...]:
        """The replicas of the newest roster; empty: there has been none."""
        return () if self.roster is None else self.roster.replicas

    @property
    def stored(self) -> wire.CheckpointVersion | None:
        """The newest version that was announced durable."""
        return None if self.checkpoint is None else self.checkpoint.version

    def judged_agent(self, rank: int, agent_id: str) -> wire.NodeJudged | None:
        """The newest verdict on this very agent; None: there is none."""
        judged = self.judged.get(rank)
        return judged if judged is not None and judged.agent_id == agent_id else None

    def progressed(self, ended_round: int) -> bool:
        """Whether that world got further than any world before that failed.

        Where steps are not known, a world that trained at all did; where they are guessed, one that
        had a guessed step.
        """
        trained = self.trained_rounds.get(ended_round, False)
        trained = trained and ended_round not in self.stepless_rounds
        return self.is_progress(self.ended_steps.get(ended_round, 0), trained=trained)

    def is_progress(self, step: int, *, trained: bool) -> bool:
        """Whether `step` lies behind every failure so far.

        Where steps are not known, a world that trained at all (`trained`) got further.
        """
        if self.failed_step is None:
            return True
        return step > self.failed_step if self.best_step else trained

    def trim(self) -> None:
        """Drop the oldest entries of each bounded container."""
        bounded: tuple[tuple[dict[Any, Any], int], ...] = (
            (self.incidents, self.incident_limit),
            (self.trained_rounds, KEPT_ROUNDS),
            (self.ended_steps, KEPT_ROUNDS),
            (self.stepless_rounds, KEPT_ROUNDS),
            (self.straggler_trials, KEPT_TRIALS),
        )
        for kept, limit in bounded:
            while len(kept) > limit:
                del kept[next(iter(kept))]
