"""What the samples of a node's ranks add up to: progress, first step, arm echo, boundary.

Inputs are readings of the shared page and the exits seen so far; outputs are messages to send.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from holdfast_wire.messages import (
    ArmEcho,
    BoundaryReached,
    RankProgress,
    RankSection,
    SavingReport,
)

NS = 1e-9


class Saving(Protocol):
    """What one rank says of its saves, as `holdfast.sample.SavingSample` has it (times in ns)."""

    @property
    def step_ns(self) -> int: ...  # noqa: D102
    @property
    def memory_ns(self) -> int: ...  # noqa: D102
    @property
    def storage_ns(self) -> int: ...  # noqa: D102
    @property
    def durable_ns(self) -> int: ...  # noqa: D102
    @property
    def memory_every(self) -> int | None: ...  # noqa: D102
    @property
    def storage_every(self) -> int | None: ...  # noqa: D102
    @property
    def seen_id(self) -> int: ...  # noqa: D102
    @property
    def seen_step(self) -> int: ...  # noqa: D102


class Sample(Protocol):
    """A reading of one rank's slot, as `holdfast.sample.RankSample` has it (times in ns)."""

    @property
    def round(self) -> int: ...  # noqa: D102 - fields of the protocol are the sample's own
    @property
    def attached(self) -> bool: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def step_ns(self) -> int: ...  # noqa: D102
    @property
    def step_duration_ns(self) -> int: ...  # noqa: D102
    @property
    def samples(self) -> int: ...  # noqa: D102
    @property
    def loss(self) -> float | None: ...  # noqa: D102
    @property
    def section(self) -> int: ...  # noqa: D102
    @property
    def section_ns(self) -> int: ...  # noqa: D102
    @property
    def first_step(self) -> int: ...  # noqa: D102
    @property
    def first_step_ns(self) -> int: ...  # noqa: D102
    @property
    def echo_id(self) -> int: ...  # noqa: D102
    @property
    def echo_step(self) -> int: ...  # noqa: D102
    @property
    def answered_id(self) -> int: ...  # noqa: D102
    @property
    def answered_step(self) -> int: ...  # noqa: D102
    @property
    def boundary_complete(self) -> bool: ...  # noqa: D102
    @property
    def saving(self) -> Saving | None: ...  # noqa: D102


@dataclasses.dataclass(frozen=True, slots=True)
class Rank:
    """One local rank of the running round."""

    sample: Sample
    pid: int
    """Its process; 0: not started."""
    started_ns: int
    """When its process was started."""
    exit_code: int | None = None
    """None: it runs; -N: signal N."""

    @property
    def ended_at_boundary(self) -> bool:
        """It answered SAVE_AND_STOP, saved and ended (or may be ended without loss)."""
        answered = self.sample.answered_id != 0
        return answered and (self.sample.boundary_complete or self.exit_code == 0)


@dataclasses.dataclass(frozen=True, slots=True)
class FirstStep:
    """All local ranks have completed a step."""

    step: int
    """Restored step + 1."""
    at_ns: int
    """When the last of them did."""


def progress(local_rank: int, rank: Rank, round_number: int, now_ns: int) -> RankProgress:
    """Return what a heartbeat says of one rank."""
    sample = rank.sample
    if sample.round != round_number:
        # The process has not claimed its slot yet.
        return RankProgress(
            local_rank=local_rank, round=round_number, section=RankSection.INIT, pid=rank.pid
        )
    first = sample.first_step_ns - rank.started_ns if sample.first_step_ns else 0
    return RankProgress(
        local_rank=local_rank,
        round=round_number,
        step=sample.step,
        step_seconds=sample.step_duration_ns * NS,
        since_step_seconds=max(0, now_ns - sample.step_ns) * NS if sample.step_ns else 0.0,
        samples=sample.samples,
        loss=sample.loss if sample.loss is not None else 0.0,
        section=RankSection(int(sample.section) + 1),
        has_sdk=sample.attached,
        pid=rank.pid,
        first_step=sample.first_step,
        first_step_seconds=max(0, first) * NS,
    )


def common_step(ranks: Mapping[int, Rank], round_number: int) -> int:
    """Return the newest step that all ranks have completed; 0 where one has none."""
    steps = [rank.sample.step for rank in ranks.values() if rank.sample.round == round_number]
    return min(steps) if steps and len(steps) == len(ranks) else 0


def first_step(ranks: Mapping[int, Rank], round_number: int) -> FirstStep | None:
    """Return the first completed step of all ranks; None while one still lacks it."""
    samples = [rank.sample for rank in ranks.values()]
    if not samples or any(s.round != round_number or not s.first_step_ns for s in samples):
        return None
    return FirstStep(max(s.first_step for s in samples), max(s.first_step_ns for s in samples))


def arm_echo(ranks: Mapping[int, Rank], arm_id: int) -> ArmEcho | None:
    """Return the echo of an arm once every rank has seen it."""
    samples = [rank.sample for rank in ranks.values()]
    if not samples or any(sample.echo_id != arm_id for sample in samples):
        return None
    return ArmEcho(arm_id=arm_id, seen_at_step=max(sample.echo_step for sample in samples))


def saving(ranks: Mapping[int, Rank]) -> SavingReport | None:
    """Return what saves cost here; None unless every rank follows the master's schedule.

    All ranks of a world wait for the slowest, so the most counts. What they know of a schedule is
    told once all of them have heard of it.
    """
    found = [rank.sample.saving for rank in ranks.values()]
    told = [one for one in found if one is not None]
    if not told or len(told) < len(found):
        return None
    seen = {one.seen_id for one in told}
    heard = seen.pop() if len(seen) == 1 else 0
    return SavingReport(
        step_seconds=max(one.step_ns for one in told) * NS,
        memory_seconds=max(one.memory_ns for one in told) * NS,
        storage_seconds=max(one.storage_ns for one in told) * NS,
        durable_seconds=max(one.durable_ns for one in told) * NS,
        memory_every=told[0].memory_every,
        storage_every=told[0].storage_every,
        seen_id=heard,
        seen_step=max(one.seen_step for one in told) if heard else 0,
    )


def ended_at_boundary(ranks: Mapping[int, Rank]) -> int:
    """Return how many ranks answered SAVE_AND_STOP, saved and have ended."""
    return sum(rank.exit_code is not None and rank.ended_at_boundary for rank in ranks.values())


def boundary(ranks: Mapping[int, Rank]) -> BoundaryReached | None:
    """Return the boundary once every rank has ended at the same one."""
    if not ranks or not all(rank.ended_at_boundary for rank in ranks.values()):
        return None
    answers = {(r.sample.answered_id, r.sample.answered_step) for r in ranks.values()}
    if len(answers) != 1:
        return None
    arm_id, step = answers.pop()
    return BoundaryReached(arm_id=arm_id, step=step)
