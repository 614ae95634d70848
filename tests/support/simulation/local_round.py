"""A round on one node: its processes, and the slots of the shared page that they write.

A record, as `holdfast_agent.workers.rounds` has it; what happens to it is `workers`' business.
"""

from __future__ import annotations

import dataclasses
from typing import cast

from holdfast.page_sample import RankSample, SavingSample
from holdfast_agent.policies.rank_progress import Rank
from holdfast_agent.policies.round_phases import Orders
from holdfast_master.policies.hang_response import HangKind
from holdfast_wire.messages import RunningWorker, SetBarrier, WorldAssignment
from simulation.follower import Follower
from simulation.training import PACE, Round

TRAIN = 2
"""holdfast.page_sample's section of a training step: one less than RankSection.TRAIN."""


@dataclasses.dataclass(slots=True)
class Slot:
    """A rank's slot of the shared page; all ranks of a node are alike here."""

    round: int
    attached: bool
    step: int = 0
    step_ns: int = 0
    step_duration_ns: int = int(PACE * 1e9)
    samples: int = 0
    loss: float | None = 1.0
    section: int = TRAIN
    section_ns: int = 0
    first_step: int = 0
    first_step_ns: int = 0
    ack_id: int = 0
    ack_step: int = 0
    answered_id: int = 0
    answered_step: int = 0
    sync_ns: int = 0
    work_ns: int = 0
    barrier_complete: bool = False
    saving: SavingSample | None = None

    def write(self, step: int, base: int, now_ns: int) -> None:
        """Write the completed steps of processes that began after `base`, once there is one."""
        if step <= base and not self.first_step:
            return
        if step != self.step:
            self.step_ns = now_ns
        self.step, self.samples = step, step * 8
        if not self.first_step:
            self.first_step, self.first_step_ns = base + 1, now_ns


@dataclasses.dataclass(frozen=True, slots=True)
class Hung:
    """A process that makes no progress while it lives."""

    local_rank: int
    kind: HangKind


@dataclasses.dataclass(eq=False, slots=True)
class LocalRound:
    """A round whose processes were started here."""

    number: int
    assignment: WorldAssignment
    slot: Slot
    physics: Round | None = None
    exits: dict[int, int] = dataclasses.field(default_factory=dict)
    orders: Orders = Orders.NONE
    dead: bool = False
    started: bool = False
    barrier: SetBarrier | None = None
    """The newest order to save and stop."""
    follower: Follower | None = None
    """None: its ranks follow no schedule of a master."""
    hung: Hung | None = None
    """None: all its ranks train."""

    @property
    def armed(self) -> int:
        """Its id; 0: there is none."""
        return self.barrier.barrier_id if self.barrier is not None else 0

    @property
    def killed(self) -> bool:
        """True: the agent sent SIGKILL."""
        return Orders.KILLED in self.orders

    def view(self, size: int) -> dict[int, Rank]:
        """All `size` ranks, as the agent samples them."""
        sample = cast("RankSample", self.slot)
        return {rank: Rank(sample, 1000 + rank, 0, self.exits.get(rank)) for rank in range(size)}

    def running(self, size: int) -> tuple[RunningWorker, ...]:
        """The living of its `size` processes."""
        if self.dead or not self.started:
            return ()
        return tuple(
            RunningWorker(local_rank=rank, pid=1000 + rank, round=self.number)
            for rank in range(size)
            if rank not in self.exits
        )
