"""Combines the samples of a node's ranks: progress, first step, barrier.

Inputs are readings of the shared page and the exits seen so far; outputs are messages to send.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from holdfast.page_sample import RankSample, SavingSample
from holdfast_agent.policies.collective_steps import StepGuess
from holdfast_wire import messages as wire
from holdfast_wire.tiers import TIERS

NS = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Rank:
    """One local rank of the running round."""

    sample: RankSample
    pid: int
    """Process of the rank; 0: not started."""
    started_ns: int
    """Start of the process."""
    exit_code: int | None = None
    """None: it runs; -N: signal N."""

    @property
    def ended_at_barrier(self) -> bool:
        """True: it answered SAVE_AND_STOP, saved and ended (or may be ended without loss)."""
        answered = self.sample.answered_id != 0
        return answered and (self.sample.barrier_complete or self.exit_code == 0)


def progress(local_rank: int, rank: Rank, round_number: int, now_ns: int) -> wire.RankProgress:
    """Return one rank's entry in a heartbeat."""
    sample = rank.sample
    if sample.round != round_number:
        # The process has not claimed its slot yet.
        return wire.RankProgress(
            local_rank=local_rank, round=round_number, section=wire.RankSection.INIT, pid=rank.pid
        )
    first = sample.first_step_ns - rank.started_ns if sample.first_step_ns else 0
    return wire.RankProgress(
        local_rank=local_rank,
        round=round_number,
        step=sample.step,
        step_seconds=sample.step_duration_ns * NS,
        since_step_seconds=max(0, now_ns - sample.step_ns) * NS if sample.step_ns else 0.0,
        samples=sample.samples,
        loss=sample.loss if sample.loss is not None else 0.0,
        section=wire.RankSection(int(sample.section) + 1),
        has_sdk=sample.attached,
        pid=rank.pid,
        first_step=sample.first_step,
        first_step_seconds=max(0, first) * NS,
        sync_seconds=sample.sync_ns * NS,
        work_seconds=sample.work_ns * NS,
    )


def guessed(known: wire.RankProgress, guess: StepGuess | None, unix: float) -> wire.RankProgress:
    """Return an entry with guessed progress, where the script reports none; step 0: not one yet.

    unix: now, Unix time, s.
    """
    if known.has_sdk or guess is None:
        return known
    return dataclasses.replace(
        known,
        step=guess.step,
        step_seconds=guess.step_seconds,
        since_step_seconds=max(0.0, unix - guess.at),
        step_source=wire.StepSource.COLLECTIVES,
    )


def common_step(ranks: Mapping[int, Rank], round_number: int) -> int:
    """Return the newest step that all ranks have completed; 0 if one rank has none."""
    steps = [rank.sample.step for rank in ranks.values() if rank.sample.round == round_number]
    return min(steps) if steps and len(steps) == len(ranks) else 0


def first_step(ranks: Mapping[int, Rank], round_number: int) -> tuple[int, int] | None:
    """Return the first step that all ranks have completed, and when the last one did, ns.

    None while one still lacks it. The step is the restored one + 1.
    """
    samples = [rank.sample for rank in ranks.values()]
    if not samples or any(s.round != round_number or not s.first_step_ns for s in samples):
        return None
    return max(s.first_step for s in samples), max(s.first_step_ns for s in samples)


def barrier_ack(ranks: Mapping[int, Rank], barrier_id: int) -> wire.BarrierAck | None:
    """Return the acknowledgement of a barrier, once every rank has seen it."""
    samples = [rank.sample for rank in ranks.values()]
    if not samples or any(sample.ack_id != barrier_id for sample in samples):
        return None
    return wire.BarrierAck(
        barrier_id=barrier_id, seen_at_step=max(sample.ack_step for sample in samples)
    )


def saving(ranks: Mapping[int, Rank]) -> wire.SavingReport | None:
    """Return the costs of saves here; None unless every rank follows the master's schedule.

    All ranks of a world wait for the slowest, so the maximum counts. A schedule is acknowledged
    once all ranks have seen it.
    """
    found = [rank.sample.saving for rank in ranks.values()]
    told = [one for one in found if one is not None]
    if not told or len(told) < len(found):
        return None
    seen = {one.seen_id for one in told}
    heard = seen.pop() if len(seen) == 1 else 0
    return wire.SavingReport(
        step_seconds=max(one.step_ns for one in told) * NS,
        costs=_costs(told),
        seen_id=heard,
        seen_step=max(one.seen_step for one in told) if heard else 0,
    )


def _costs(told: Sequence[SavingSample]) -> tuple[wire.TierCost, ...]:
    found: list[wire.TierCost] = []
    for tier in TIERS:
        costs = [one.tiers[tier] for one in told if tier in one.tiers]
        if costs:
            stop = max(one.stop_ns for one in costs) * NS
            durable = max(one.durable_ns for one in costs) * NS
            every = costs[0].every
            found.append(
                wire.TierCost(tier=tier, stop_seconds=stop, durable_seconds=durable, every=every)
            )
    return tuple(found)


def ended_at_barrier(ranks: Mapping[int, Rank]) -> int:
    """Return the number of ranks that answered SAVE_AND_STOP, saved and have ended."""
    return sum(rank.exit_code is not None and rank.ended_at_barrier for rank in ranks.values())


def barrier(ranks: Mapping[int, Rank]) -> wire.BarrierReached | None:
    """Return the barrier once every rank has ended at the same one."""
    if not ranks or not all(rank.ended_at_barrier for rank in ranks.values()):
        return None
    answers = {(r.sample.answered_id, r.sample.answered_step) for r in ranks.values()}
    if len(answers) != 1:
        return None
    barrier_id, step = answers.pop()
    return wire.BarrierReached(barrier_id=barrier_id, step=step)
