"""One round on this node: its orders, its processes, and their exits.

A record and views of it; `runner` carries out the orders.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from holdfast.page import Page
from holdfast_agent.policies.rank_progress import Rank
from holdfast_agent.policies.round_phases import Orders
from holdfast_agent.workers.log_files import RoundLogs
from holdfast_wire.messages import RoundStarted, RunningWorker, SetBarrier, WorldAssignment

READ_TIMEOUT_SECONDS = 0.0002
"""Seconds for one slot: a write lasts 1 µs, and a stopped writer must not block the event loop."""
STUCK_SECONDS = 15.0
"""Limit for a kill or a fork, s. They take milliseconds; a slower node is of no use to the job."""
DYING_SECONDS = 60.0
"""The same limit for a round that was killed while one of its ranks was dying by itself, s: that
may take 0.1 s per GiB, and the kill comes at its beginning."""


NO_LOGS: Final = RoundLogs({}, lambda: None)
"""Of a round whose log files are being made."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Round:
    """A round that was assigned: it waits for the end of the one before, or was started here."""

    number: int
    assignment: WorldAssignment
    ordered_at: float = 0.0
    """Monotonic time at which the assignment arrived, s."""
    envs: dict[int, dict[str, str]] = dataclasses.field(default_factory=dict)
    """Variables of its ranks."""
    logs: RoundLogs = NO_LOGS
    spawned_at: float = 0.0
    """Monotonic time at which no process of the round before lived, and the zygote was told to
    start this one, s."""
    pids: dict[int, int] = dataclasses.field(default_factory=dict)
    started_ns: dict[int, int] = dataclasses.field(default_factory=dict)
    exits: dict[int, int] = dataclasses.field(default_factory=dict)
    """Exit code by local rank, -N for signal N."""
    dying: set[int] = dataclasses.field(default_factory=set)
    """Local ranks among `exits` whose processes the kernel has not taken down yet."""
    cold: bool = False
    """True: a process was not forked from the zygote."""
    orders: Orders = Orders.NONE
    """Actions of this agent against it."""
    killed_at: float = 0.0
    """Monotonic time of the agent's kill, if there was one, s."""
    dead: bool = False
    """True: no process of it lives, descendants included."""
    started_reported: bool = False
    first_step_reported: bool = False
    barrier_reported: bool = False
    barrier: SetBarrier | None = None
    """Newest barrier that its ranks were given."""
    acked: int = 0
    """Newest barrier id that was acknowledged to the master."""

    @property
    def armed(self) -> int:
        """Newest barrier id; 0: none."""
        return 0 if self.barrier is None else self.barrier.barrier_id

    @property
    def stop_barrier(self) -> SetBarrier | None:
        """Barrier at which its ranks stop; None: there is none, or they only save and go on."""
        return None if self.barrier is None or self.barrier.goes_on else self.barrier

    @property
    def size(self) -> int:
        """Number of local ranks."""
        return self.assignment.local_world_size

    @property
    def all_started(self) -> bool:
        """True: every local rank has, or had, a process."""
        return len(self.pids) == self.size

    @property
    def all_exited(self) -> bool:
        """True: every local rank has ended."""
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
        """Return the reason why its node cannot go on; empty: it can (`now`: monotonic, s)."""
        if self.dead:
            return ""
        limit = DYING_SECONDS if self.dying else STUCK_SECONDS
        if Orders.KILLED in self.orders and now - self.killed_at > limit:
            return f"processes of round {self.number} survive SIGKILL, or the zygote is stopped"
        if not self.all_started and now - self.spawned_at > STUCK_SECONDS:
            return f"the zygote has not started round {self.number}"
        return ""

    def started(self, cold_reason: str) -> RoundStarted:
        """Return RoundStarted without a first step; cold_reason: reason for not forking."""
        last = max(self.started_ns.values(), default=0) * 1e-9
        return RoundStarted(
            killed_seconds=self.spawned_at - self.ordered_at,
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
