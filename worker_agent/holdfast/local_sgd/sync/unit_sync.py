"""Sync of units: begin, one large reduction in flight, finish.

Belongs here: the course of one outer round of a batch of units. Does not belong here: when a round
is due and which parameters are a unit, which the hooks of a framework decide.

For each unit (EDiT, arXiv 2412.07210): Δ = A - θ; G = ‖Δ‖ over the shard group; a replica whose G
is not finite, or stands out from its own past, is anomalous and sends zeros; the weights follow
from the reports of all replicas; Δ̄ = Σ wᵢΔᵢ; Δ̂ = Δ̄·min(1, φ/(‖Δ̄‖ + 1e-6)); an outer step along
Δ̂; θ := A. If all replicas are anomalous, θ := A and nothing else changes: a rollback.

A batch costs one all-reduce of a scalar for each unit in the shard group, one all-gather of a few
scalars in the sync group, and the reduction. With clipping it costs two more of scalars.

A sync is atomic. Until its reduction has succeeded it changes nothing of a unit, so after a
`SyncError` the unit is at its old round with its old weights, and can begin again in a new group.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.anomaly import Ewma, judge
from holdfast.local_sgd.policies.weights import ReplicaWeights, Report, clip_factor, weigh
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.reducers import Deltas, Lost, Reducer, Reduction
from holdfast.local_sgd.sync.units import Unit

if TYPE_CHECKING:
    import torch


T = TypeVar("T")
_REPORT: Final = 4 + len(Ewma().state())
"""Numbers in a replica's report of a unit: its round, norm, anomalous or not, steps, detector."""


class RoundsDifferError(SyncError):
    """Replicas that begin a sync of one unit are at different rounds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One unit's round, as every replica sees it."""

    name: str
    """Of the unit."""
    round: int
    """After it."""
    norms: tuple[float, ...]
    """‖Δ‖ of each replica; infinite where it was not finite."""
    anomalous: tuple[bool, ...]
    """Of each replica."""
    weights: tuple[float, ...]
    """Of each replica."""
    rollback: bool
    """No outer step was made: all replicas were anomalous, or had made no step."""
    clipped: float
    """Factor of the clipping; 1: none."""
    reason: str
    """In words."""
    replicas: tuple[int, ...] = ()
    """Numbers of those who were in the round, in the order of norms and weights."""


@dataclass(slots=True)
class Pending:
    """A batch of units between begin and finish."""

    units: Sequence[Unit]
    reports: list[list[Report]]
    """By unit, by replica."""
    verdicts: list[ReplicaWeights]
    detectors: list[dict[int, Ewma]]
    """By unit: of each replica, this round's norm learned."""
    sizes: list[int]
    reduction: Reduction | None
    """None: every unit rolls back, or has no elements."""
    with_reports: list[list[float]]
    """By replica: what it has sent with the reports."""


class WithReports(Protocol):
    """Figures that replicas send one another with a round's reports."""

    def figures(self, units: Sequence[Unit]) -> list[float]:
        """Return this replica's figures for a batch, as many numbers as the others; empty: none.

        Raises:
            SyncError: a rank of this replica is gone.
        """

    def received(self, sent: Sequence[Sequence[float]], round_number: int) -> None:
        """Take the figures of all replicas, once the batch is finished at this round."""


class UnitSync:
    """Rounds of units between the ranks that hold the same shard."""

    def __init__(
        self,
        config: LocalSGDConfig,
        reducer: Reducer,
        sync: Group,
        shard: Group,
        *,
        clip_scope: Literal["unit", "batch"] = "unit",
    ) -> None:
        """Take the settings.

        Args:
            config: Weights, anomalies and φ, the greatest norm of Δ̄; all replicas decide alike.
            reducer: How deltas become one.
            sync: The ranks that hold the same shard, one of each replica.
            shard: The ranks of this replica.
            clip_scope: Norm of each unit, as with FSDP, or one of the whole batch, as with DDP.
        """
        self.reducer, self.sync, self.shard = reducer, sync, shard
        self._config, self._clip_scope = config, clip_scope
        self.voters: Group | None = None
        """All ranks of this replica, where replicas come and go: a step that fails on one of them
        fails on all, by one more scalar all-reduce. So a replica has a unit's round, or has not."""
        self.with_reports: WithReports | None = None
        """Travels with the reports; None: nothing does."""

    def begin(self, units: Sequence[Unit], *, steps: float = 1.0) -> Pending:
        """Start the round of a batch; all replicas begin and finish in the same order.

        Args:
            units: Those that agree now; at most a few batches are in flight, each has a copy of
                its deltas.
            steps: What this replica has done since its last round, in steps or tokens; 0: it
                weighs nothing, and takes the result.

        Raises:
            SyncError: a rank is gone; the units are unchanged.
        """
        flat, sizes = _deltas_of(units, self.reducer)
        norms = self._norms(flat, sizes, units)
        judged = [self._judge(*one) for one in zip(units, norms, strict=True)]
        mine = [
            Report(norm=norm, anomalous=anomalous, steps=steps) for (anomalous, norm, _) in judged
        ]

        said = [] if self.with_reports is None else self.with_reports.figures(units)

        def exchange_and_start() -> Pending:
            rows = self._exchange(units, mine, [one[2] for one in judged], said)
            reports, detectors = _by_unit(units, self.sync.numbers, rows)
            verdicts = [weigh(one, self._config) for one in reports]
            for span, (verdict, own) in zip(
                _spans(sizes), zip(verdicts, mine, strict=True), strict=True
            ):
                if own.anomalous or verdict.rollback:
                    flat[span].zero_()  # NaN times zero is NaN: overwritten, not multiplied
            reduction = None
            if flat.numel() and not all(one.rollback for one in verdicts):
                reduction = self.reducer.start(self.sync, self._batch(units, flat, sizes, verdicts))
            told = [row[len(row) - len(said) :] for row in rows]
            return Pending(units, reports, verdicts, detectors, sizes, reduction, told)

        return all_or_none(self.voters, exchange_and_start)

    def finish(self, pending: Pending) -> list[Outcome]:
        """Wait for the reduction and make the outer steps.

        Raises:
            SyncError: a rank is gone; the units are unchanged.
        """
        import torch

        lost: Sequence[Lost | None] = [unit.lost for unit in pending.units]
        means: Sequence[torch.Tensor | None] = [None] * len(pending.units)
        factors = [1.0] * len(pending.units)
        with torch.no_grad():
            reduced = all_or_none(self.voters, pending.reduction or (lambda: None))
            if reduced is not None:
                mean, lost = reduced
                factors = self._clip(mean, pending)
                means = mean.split(pending.sizes)
            outcomes = [
                self._step(number, pending, means[number], lost[number], factors[number])
                for number in range(len(pending.units))
            ]
        if self.with_reports is not None and pending.with_reports[0]:
            self.with_reports.received(pending.with_reports, outcomes[0].round)
        return outcomes

    def regroup(self, units: Sequence[Unit], sync: Group, shard: Group) -> None:
        """Go on in new groups, after ranks went or came; no batch is in flight.

        This replica keeps its own detectors under its new rank. Those of the others come with
        their next reports.
        """
        for unit in units:
            own = unit.detectors.get(self.sync.numbers[self.sync.rank])
            unit.detectors = {} if own is None else {sync.numbers[sync.rank]: own}
        self.sync, self.shard = sync, shard

    def _norms(
        self, flat: torch.Tensor, sizes: Sequence[int], units: Sequence[Unit]
    ) -> list[float]:
        """Return ‖Δ‖ of each unit over the shard group; values of several ranks count once."""
        import torch

        if not sizes:
            return []
        dtype = torch.promote_types(flat.dtype, torch.float32)
        local = [torch.linalg.vector_norm(flat[span], dtype=dtype) for span in _spans(sizes)]
        squares = [
            0.0 if unit.is_copy and math.isfinite(norm) else norm * norm
            for unit, norm in zip(units, torch.stack(local).tolist(), strict=True)
        ]
        return [math.sqrt(square) for square in self.shard.sum_scalars(squares)]

    def _judge(self, unit: Unit, norm: float) -> tuple[bool, float, Ewma]:
        """Return True if this replica is anomalous, its norm for the others, and its detector."""
        ewma = unit.detectors.get(self.sync.numbers[self.sync.rank], Ewma())
        anomalous = not math.isfinite(norm)
        if self._config.skip_anomaly:
            anomalous, ewma = judge(ewma, norm, self._config)
        return anomalous, norm if math.isfinite(norm) else math.inf, ewma

    def _exchange(
        self,
        units: Sequence[Unit],
        mine: Sequence[Report],
        detectors: Sequence[Ewma],
        said: Sequence[float],
    ) -> list[list[float]]:
        """Return the reports of all replicas: a row of each, unit by unit, then `said`."""
        sent: list[float] = []
        for unit, report, ewma in zip(units, mine, detectors, strict=True):
            sent += [unit.round, report.norm, report.anomalous, report.steps, *ewma.state()]
        return self.sync.gather_scalars([*sent, *said])

    def _batch(
        self,
        units: Sequence[Unit],
        flat: torch.Tensor,
        sizes: Sequence[int],
        verdicts: Sequence[ReplicaWeights],
    ) -> Deltas:
        seeds = [
            zlib.crc32(f"{unit.name} {unit.round} {self.sync.rank} {self.shard.rank}".encode())
            for unit in units
        ]
        weights = [one.weights for one in verdicts]
        return Deltas(flat, sizes, weights, seeds, [unit.lost for unit in units])

    def _clip(self, mean: torch.Tensor, pending: Pending) -> list[float]:
        """Return each unit's factor; the replicas agree on the norms, to the last bit."""
        limit = self._config.clip_pseudo_grad
        if limit is None:
            return [1.0] * len(pending.sizes)
        norms = self._norms(mean, pending.sizes, pending.units)
        if self._clip_scope == "batch":
            norms = [math.hypot(*norms)] * len(norms)
        agreed = all_or_none(self.voters, lambda: self.sync.max_scalars(norms))
        return [clip_factor(norm, limit) for norm in agreed]

    def _step(
        self,
        number: int,
        pending: Pending,
        mean: torch.Tensor | None,
        lost: Lost | None,
        factor: float,
    ) -> Outcome:
        unit, verdict = pending.units[number], pending.verdicts[number]
        if not verdict.rollback and mean is not None:
            unit.anchors.step(mean * factor if factor != 1 else mean)
            unit.lost = lost
        unit.anchors.write_weights(unit.tensors())
        unit.detectors = {**unit.detectors, **pending.detectors[number]}
        unit.round += 1
        reports = pending.reports[number]
        return Outcome(
            unit.name,
            unit.round,
            tuple(report.norm for report in reports),
            tuple(report.anomalous for report in reports),
            tuple(verdict.weights),
            verdict.rollback,
            factor,
            verdict.reason,
            tuple(self.sync.numbers),
        )


def all_or_none(voters: Group | None, call: Callable[[], T]) -> T:
    """Return a call's result, if it raises no SyncError on any of these ranks.

    Raises:
        SyncError: it has failed here, or on another rank.
    """
    try:
        result = call()
    except SyncError:
        if voters is not None:
            voters.max_scalars([1.0])
        raise
    if voters is not None and voters.max_scalars([0.0])[0] > 0:
        raise SyncError("a collective has failed on another rank of this replica; sync again")
    return result


def _deltas_of(units: Sequence[Unit], reducer: Reducer) -> tuple[torch.Tensor, list[int]]:
    """Return Δ of all units behind one another, and the length of each."""
    import torch

    tensors = [unit.tensors() for unit in units]
    every = [one for some in tensors for one in some]
    sizes = [sum(one.numel() for one in some) for some in tensors]
    dtype, device = reducer.dtype([one.dtype for one in every]), torch.device("cpu")
    if every:
        device = every[0].device
    flat = torch.empty(sum(sizes), dtype=dtype, device=device)
    for unit, span, some in zip(units, _spans(sizes), tensors, strict=True):
        unit.anchors.write_delta(flat[span], some)
    return flat, sizes


def _spans(sizes: Sequence[int]) -> list[slice]:
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _by_unit(
    units: Sequence[Unit], numbers: Sequence[int], told: Sequence[Sequence[float]]
) -> tuple[list[list[Report]], list[dict[int, Ewma]]]:
    """Return the reports and the detectors of all replicas, by unit."""
    reports, known, wide = list[list[Report]](), list[dict[int, Ewma]](), _REPORT
    for number, unit in enumerate(units):
        rows = [one[number * wide : (number + 1) * wide] for one in told]
        _check_rounds(unit, [int(row[0]) for row in rows])
        reports.append([Report(row[1], bool(row[2]), row[3]) for row in rows])
        numbered = zip(numbers, rows, strict=True)
        known.append({number: Ewma.of(row[4:]) for number, row in numbered})
    return reports, known


def _check_rounds(unit: Unit, rounds: Sequence[int]) -> None:
    if len(set(rounds)) > 1:
        told = ", ".join(f"replica {rank} at {one}" for rank, one in enumerate(rounds))
        raise RoundsDifferError(
            f"unit {unit.name}: the replicas are at different rounds ({told}); give those behind "
            "the anchors and the momentum of one that is ahead, then sync again"
        )
