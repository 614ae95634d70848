"""The health of the running world and the check before a node joins, as this master knows them.

Nothing of it survives the master; verdicts that do stand in `job_state`.
"""

from __future__ import annotations

import array
import dataclasses
import math
from typing import Final

from holdfast_master.policies.hang_limit import LearnedTimes, Phase
from holdfast_master.policies.hang_response import AnsweredHang, HangVerdict
from holdfast_master.policies.preflight.figures import FigureReport
from holdfast_master.policies.preflight.rounds import Check
from holdfast_master.policies.slow_replicas import ReplicaWork
from holdfast_master.policies.straggler.collectives import IssuedRun, Step
from holdfast_master.policies.straggler.slices import Slices
from holdfast_master.policies.straggler.verdict import StragglerVerdict
from holdfast_master.policies.straggler.votes import VoteRecord
from holdfast_master.policies.straggler.window import Window
from holdfast_wire.messages import CheckListening, HealthMode, MasterSpec, RankEvidence, RankSection

KEPT: Final = 512
"""Newest collectives of a rank in one process group."""
OFF: Final = frozenset({HealthMode.UNSPECIFIED, HealthMode.DISABLED})
"""Modes in which nobody is judged."""


@dataclasses.dataclass(slots=True, eq=False)
class GroupHistory:
    """One process group: its ranks' collectives, and the votes about them."""

    samples: dict[int, list[IssuedRun]] = dataclasses.field(default_factory=dict)
    """By global rank."""
    fresh: set[int] = dataclasses.field(default_factory=set)
    """Ranks that have sent something since the last look."""
    fresh_since: float = math.inf
    """Patient clock at which the first of them has, s."""
    judgement: Slices[None] | None = None
    """The rest of a look that is under way; None: there is none."""
    period: int = 0
    """Collectives of a step, as the agents see it; 0: none is seen."""
    period_of: int = -1
    """The rank that told it; -1: nobody has."""
    aligned: int = 0
    """Sequence number of the last collective of the newest step that was aligned."""
    waiting: list[Step] = dataclasses.field(default_factory=list)
    """Aligned steps that no window is whole of yet."""
    slow: tuple[StragglerVerdict, ...] = ()
    """The verdicts that hold."""
    record: VoteRecord = dataclasses.field(default_factory=VoteRecord)
    counted: tuple[int, int] = (0, 0)
    """Steps that a rank had completed, and the sequence number of its newest collective by then."""
    window: Window | None = None
    """The newest window; None: none is whole yet."""
    trial_runs: dict[int, int] = dataclasses.field(default_factory=dict)
    """By the round of a trial: windows in a row in which its ranks were slow; below 0: were not."""

    def add(self, rank: int, sent: IssuedRun, now: float) -> None:
        """Take collectives; a number that went back means that the group was made anew."""
        runs = self.samples.setdefault(rank, [])
        if runs and sent.first < _end(runs[-1]):
            runs = self.samples[rank] = []
            self.aligned, self.judgement = 0, None
        if runs and sent.first == _end(runs[-1]):
            runs[-1].signatures.extend(sent.signatures)
            runs[-1].at.extend(sent.at)
        else:
            runs.append(sent)
        self._forget(rank, _end(runs[-1]) - KEPT)
        if not self.fresh:
            self.fresh_since = now
        self.fresh.add(rank)

    def repeat(self, rank: int, period: int) -> None:
        """Take a rank's view of the period: the longest one holds, until its rank sees another.

        Parts of a step repeat each other as well, and not each look shows where it ends. What was
        learned of other steps is of no use.
        """
        if not period or (period <= self.period and rank != self.period_of):
            return
        self.period_of = rank
        if period == self.period:
            return
        if self.period:
            self.waiting, self.record = [], VoteRecord()
            self.judgement = None
        self.period = period

    def step_at(self, sequence: int) -> int:
        """The number of the step that ends with a collective, as the script counts them."""
        step, at = self.counted
        return max(1, step + round((sequence - at) / self.period))

    def forget_aligned(self) -> None:
        """Drop what no later step needs: a step begins at the last collective of the one before."""
        for rank in self.samples:
            self._forget(rank, self.aligned - self.period)

    def forget_silent(self) -> None:
        """Drop the ranks that have sent nothing since the last look."""
        self.samples = {rank: runs for rank, runs in self.samples.items() if rank in self.fresh}

    def _forget(self, rank: int, oldest: int) -> None:
        """Drop a rank's collectives before a sequence number."""
        runs = self.samples[rank]
        if not runs or runs[0].first >= oldest:
            return
        # A look that is under way has these runs: what is shorter is another run.
        self.samples[rank] = [
            IssuedRun(run.first + cut, run.signatures[cut:], run.at[cut:])
            for run in runs
            if (cut := max(0, oldest - run.first)) < len(run.at)
        ]


def run_of(first: int, signatures: tuple[int, ...], at: list[float]) -> IssuedRun:
    """Return consecutive collectives as they are kept."""
    return IssuedRun(first, array.array("I", signatures), array.array("d", at))


def _end(run: IssuedRun) -> int:
    return run.first + len(run.at)


@dataclasses.dataclass(slots=True, eq=False)
class Hang:
    """One world without progress for longer than its limit."""

    number: int
    """Of the question to the agents."""
    since: float
    """Patient clock at which it was seen, s."""
    began: float
    """Patient clock at the last progress, s."""
    reason: str
    """The limit that was passed, in words."""
    excused_until: float
    """Patient clock until which ranks that compute are no hang, s."""
    unseen: bool
    """True: no rank has told a step, so only the evidence tells that the world stands still."""
    asking: bool = False
    """True: evidence is awaited; beside a verdict it is that of a later look."""
    awaited: set[int] = dataclasses.field(default_factory=set)
    """Nodes whose evidence has not come."""
    evidence: list[RankEvidence] = dataclasses.field(default_factory=list)
    verdict: HangVerdict | None = None
    """The newest one; None: there was no evidence yet."""
    judged_at: float = math.inf
    """Patient clock at the verdict, s."""
    unsure: bool = False
    """The newest look showed something else than the one before: the next one decides."""
    following_until: float = -math.inf
    """Patient clock until which the odd ranks may follow others that did the same, s."""
    answered: bool = False
    """The act that the spec wants was done, or found not to help."""
    left: bool = False
    """People were told that it is left alone."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A time without progress that is over, and that no step has followed yet."""

    seconds: float
    phases: frozenset[Phase]
    """In which a rank was meanwhile."""
    ordinary: bool
    """It will come again (`HangVerdict.may_be_ordinary`)."""


@dataclasses.dataclass(slots=True, eq=False)
class HangWatch:
    """The progress of the running world, and what it has shown of its pace."""

    since: float = 0.0
    """Patient clock at which all its processes ran, s; 0: they do not yet."""
    learned: LearnedTimes = dataclasses.field(default_factory=LearnedTimes)
    section: RankSection = RankSection.UNSPECIFIED
    """Of the first rank, and since when, patient clock, s."""
    section_at: float = -math.inf
    step: int = 0
    """Newest step of the first rank."""
    newest: int = 0
    """Newest step of any rank."""
    silent: float = 0.0
    """Time without progress at the last look, s."""
    silent_in: frozenset[Phase] = frozenset()
    """Phases that the ranks were in since then."""
    pause: Silence | None = None
    """The longest since the newest step: a collective ends it, and the step is told later."""
    asked: int = 0
    """Questions for evidence so far."""
    ask_after: float = -math.inf
    """Patient clock before which nobody is asked again: the ranks were seen at work, s."""
    hang: Hang | None = None
    """None: the world makes progress."""


@dataclasses.dataclass(slots=True, eq=False)
class Health:
    """Of one round."""

    @property
    def slow(self) -> tuple[StragglerVerdict, ...]:
        """The verdicts that hold, of all groups."""
        return tuple(one for group in self.groups.values() for one in group.slow)

    round: int = 0
    groups: dict[str, GroupHistory] = dataclasses.field(default_factory=dict)
    sampled: set[int] = dataclasses.field(default_factory=set)
    """Global ranks that have sent a sample."""
    sampled_since: float = math.inf
    """Patient clock at which the first of them has, s."""
    replica_work: dict[int, ReplicaWork] = dataclasses.field(default_factory=dict)
    """Of replicas in step, by their numbers."""
    clock_errors: dict[int, float] = dataclasses.field(default_factory=dict)
    """Bound of the error of a node's clock, s, by node rank."""
    hang_watch: HangWatch = dataclasses.field(default_factory=HangWatch)
    considered_at: float = -math.inf
    """Patient clock at which their exclusion was considered last, s."""
    kept: set[frozenset[int]] = dataclasses.field(default_factory=set)
    """Slow nodes that stay, and of which people were told that."""
    clock_anchor: float | None = None
    """Unix time at zero of this master's monotonic clock, as it was at the first probe, s; None:
    nobody has asked."""
    answered: list[AnsweredHang] = dataclasses.field(default_factory=list)
    """Of all rounds, oldest first."""
    open_incident: str = ""
    """Id of the hang that was reported and is not over, of whatever round; empty: there is none."""

    def hangs(self, round_number: int) -> bool:
        """Whether a hang of the round was found and is not over."""
        found = self.hang_watch.hang if self.round == round_number else None
        return found is not None and found.verdict is not None

    def note_sample(self, rank: int, now: float) -> None:
        """Note that a rank has sent a sample."""
        if not self.sampled:
            self.sampled_since = now
        self.sampled.add(rank)

    def begin(self, round_number: int) -> None:
        """Forget the round before: its ranks and their groups are gone."""
        if round_number != self.round:
            self.round = round_number
            self.groups, self.clock_errors, self.replica_work = {}, {}, {}
            self.sampled, self.sampled_since = set(), math.inf
            longest = self.hang_watch.learned.longest_pause
            self.hang_watch = HangWatch(learned=LearnedTimes(longest_pause=longest))
            self.kept, self.considered_at = set(), -math.inf


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
        """The name of an agent in this check; empty: it takes no part."""
        found = CheckedNode(rank, agent_id)
        return next((name for name, node in self.nodes.items() if node == found), "")


@dataclasses.dataclass(slots=True, eq=False)
class Preflight:
    """Checks of this master, one at a time."""

    open: OpenCheck | None = None
    started: int = 0
    """Checks so far."""
    gather_until: float | None = None
    """Patient clock until which nodes wait for others to be checked with, s; None: nobody does."""

    looked_after: int | None = None
    """Round after which suspect nodes were looked for; None: not yet."""
    suspects: dict[CheckedNode, str] = dataclasses.field(default_factory=dict)
    """Agents that were checked, and are to be checked again; with the reason."""

    def has_work(self, spec: MasterSpec | None) -> bool:
        """Whether nodes are to be checked, or something of earlier checks is left."""
        left = self.open is not None or self.gather_until is not None or bool(self.suspects)
        return left or preflight_mode(spec) not in OFF

    def checks(self, rank: int, agent_id: str) -> bool:
        """Whether this agent is being checked now; a partner is not."""
        if self.open is None:
            return False
        name = self.open.name_of(rank, agent_id)
        return bool(name) and name not in self.open.check.trusted()
