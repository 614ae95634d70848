"""One round on this node: what was ordered, which processes run, how they ended.

A record and views of it; orders are carried out in `runner`.
"""

from __future__ import annotations

import dataclasses

from holdfast.page import Page
from holdfast_agent.decide.exits import Orders
from holdfast_agent.decide.ranks import Rank
from holdfast_agent.logs import RoundLogs
from holdfast_wire.messages import Arm, RoundStarted, RunningWorker, WorldAssignment

READ_TIMEOUT_SECONDS = 0.0002
"""For one slot: a write lasts a microsecond, and a stopped writer must not hold the event loop."""
STUCK_SECONDS = 15.0
"""A kill or a fork takes milliseconds; a node that needs this long is of no use to the job."""
DYING_SECONDS = 60.0
"""The same for a round that was killed while a rank of it was dying by itself: that may take 0.1 s
per GiB, and the kill comes at its beginning."""


@dataclasses.dataclass(slots=True)
class Pending:
    """An assignment that waits for the round before to be dead and for its log files."""

    number: int
    assignment: WorldAssignment
    ordered_at: float
    envs: dict[int, dict[str, str]]
    logs: RoundLogs | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Round:
    """A round whose processes were started here."""

    number: int
    assignment: WorldAssignment
    ordered_at: float
    """Monotonic time at which the assignment arrived, s."""
    logs: RoundLogs
    spawned_at: float
    """Monotonic time at which the zygote was told to start it, s."""
    killed_seconds: float
    """From the assignment's arrival until nothing of the round before lived."""
    pids: dict[int, int] = dataclasses.field(default_factory=dict)
    started_ns: dict[int, int] = dataclasses.field(default_factory=dict)
    exits: dict[int, int] = dataclasses.field(default_factory=dict)
    """Exit code by local rank, -N for signal N."""
    dying: set[int] = dataclasses.field(default_factory=set)
    """Local ranks among `exits` whose processes the kernel has not taken down yet."""
    cold: bool = False
    """A process was not forked from the zygote."""
    killed_at: float | None = None
    """Monotonic time at which the agent killed it, so SIGKILL is no evidence; None: it did not."""
    stop_ordered: bool = False
    """The agent asked it to end, so no exit is evidence."""
    lease_expired: bool = False
    dead: bool = False
    """Nothing of it lives, descendants included."""
    started_reported: bool = False
    first_step_reported: bool = False
    boundary_reported: bool = False
    arm: Arm | None = None
    """The newest that its ranks were given."""
    echoed: int = 0
    """Newest arm id whose echo was sent."""

    @property
    def armed(self) -> int:
        """Newest arm id; 0: none."""
        return 0 if self.arm is None else self.arm.arm_id

    @property
    def boundary(self) -> Arm | None:
        """The arm at which its ranks stop; None: there is none, or they only save and go on."""
        return None if self.arm is None or self.arm.goes_on else self.arm

    @property
    def kill_ordered(self) -> bool:
        """The agent killed it."""
        return self.killed_at is not None

    @property
    def orders(self) -> Orders:
        """What this agent did to it."""
        return Orders(
            killed=self.kill_ordered, stopped=self.stop_ordered, lease_expired=self.lease_expired
        )

    @property
    def size(self) -> int:
        """Local ranks."""
        return self.assignment.local_world_size

    @property
    def all_started(self) -> bool:
        """Every local rank has, or had, a process."""
        return len(self.pids) == self.size

    @property
    def all_exited(self) -> bool:
        """Every local rank has ended."""
        return len(self.exits) == self.size

    def running(self) -> tuple[RunningWorker, ...]:
        """Return the living workers."""
        if self.dead:
            return ()
        return tuple(
            RunningWorker(local_rank=rank, pid=pid, round=self.number)
            for rank, pid in sorted(self.pids.items())
            if rank not in self.exits
        )

    def stuck(self, now: float) -> str:
        """Return why its node cannot go on, empty where it can (`now`: monotonic, s)."""
        if self.dead:
            return ""
        limit = DYING_SECONDS if self.dying else STUCK_SECONDS
        if self.killed_at is not None and now - self.killed_at > limit:
            return f"processes of round {self.number} survive SIGKILL, or the zygote is stopped"
        if not self.all_started and now - self.spawned_at > STUCK_SECONDS:
            return f"the zygote has not started round {self.number}"
        return ""

    def started(self, cold_reason: str) -> RoundStarted:
        """Return RoundStarted without a first step; cold_reason: why forking is not possible."""
        last = max(self.started_ns.values(), default=0) * 1e-9
        return RoundStarted(
            killed_seconds=self.killed_seconds,
            spawned_seconds=max(0.0, last - self.ordered_at),
            cold_reason=cold_reason if self.cold else "",
        )

    def rank(self, page: Page, local_rank: int) -> Rank:
        """Read one rank's slot."""
        return Rank(
            page.read(local_rank, READ_TIMEOUT_SECONDS),
            self.pids.get(local_rank, 0),
            self.started_ns.get(local_rank, 0),
            self.exits.get(local_rank),
        )

    def ranks(self, page: Page) -> dict[int, Rank]:
        """Read every rank's slot."""
        return {rank: self.rank(page, rank) for rank in range(self.size)}
