"""Alignment of collectives: from times of issue to the local work of each rank in each step.

Ranks leave a synchronous collective together. Two neighbours k and k+1 are synchronised where no
rank issues k+1 before the last rank has issued k. A segment ends with each collective that is
synchronised with the next one. A rank's local time in a segment lasts from the last rank's issue of
the segment before until its own issue of the segment's last collective. It contains the transfer,
which all share. Collectives that are issued without waiting lie in one segment, so they count once.

Ten thousand ranks take seconds, so the work is in slices: see `slices`.
"""

from __future__ import annotations

import array
import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast_master.policies.straggler.slices import SLICE_VALUES, Slices

MOST_SEGMENTS: Final = 16
"""Segments that a step keeps; of more than that, neighbours are added up. A model of 80 sharded
layers has 200 of them, and 50 such steps of 10,000 ranks would take gigabytes."""


class IssuedRun(NamedTuple):
    """Consecutive collectives of one rank. A run may grow at its end, and changes in nothing else.

    Columns of machine values take a tenth of the memory of single collectives, and of the time.
    """

    first: int
    """Sequence number of the first one."""
    signatures: array.array[int]
    at: array.array[float]
    """Times of issue in the master's clock, s."""


RunSamples = Mapping[int, Sequence[IssuedRun]]
"""Newest collectives of one process group, by rank; between the runs of a rank are gaps."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepSegment:
    """The work between two moments at which all ranks of the group were synchronised."""

    sequence: int
    """Of its last collective."""
    local: Mapping[int, float]
    """Local time of each rank, s."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One period of a group's collectives."""

    sequence: int
    """Of its last collective."""
    wall: float
    """From the moment at which its ranks were synchronised until they were again, s."""
    local: Mapping[int, float]
    """Local time of each rank: the sum over the segments, s."""
    segments: tuple[StepSegment, ...]
    """At most `MOST_SEGMENTS`."""
    synchronised: int
    """Segments, before neighbours were added up."""


def aligning(samples: RunSamples, period: int) -> Slices[list[Step]]:
    """The steps that all ranks of the group have sampled, in slices.

    They end where ranks issue different things: some have left the path, and nothing tells how.
    """
    if len(samples) < 2 or period <= 0:
        return []
    tracks = {rank: samples[rank] for rank in sorted(samples)}
    steps: list[Step] = []
    for span in filter(None, _common(list(tracks.values()))):
        run = yield from _measured(tracks, span, period)
        end = yield from _parting(tracks, run)
        steps += yield from _steps(run if end is None else run.until(end))
        if end is not None:
            break
    return steps


def step_error(steps: Sequence[Step], clock_error: float) -> float:
    """The bound of the error of a step's local time, s.

    clock_error: bound of the error of the node's clock, s. A wrong offset shifts each segment the
    same way, so a step has it as many times as it has segments.
    """
    return clock_error * max((step.synchronised for step in steps), default=1)


def _common(tracks: Sequence[Sequence[IssuedRun]]) -> list[range]:
    """The sequences that all ranks have, without those that one of them lacks."""
    found = [range(run.first, run.first + len(run.at)) for run in tracks[0]]
    for runs in tracks[1:]:
        if len(runs) == 1 and len(found) == 1:
            end = runs[0].first + len(runs[0].at)
            found = [range(max(found[0].start, runs[0].first), min(found[0].stop, end))]
            continue
        found = [
            both
            for one in found
            for run in runs
            if (both := range(max(one.start, run.first), min(one.stop, run.first + len(run.at))))
        ]
    return found


# ------------------------------------------------------------------------------------- one run


_Path = int | tuple[int, ...]
"""Signature of one collective on all ranks, or that of each rank where they differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """A run of collectives that all ranks have, without a gap."""

    first: int
    """Sequence number of the first one."""
    period: int
    columns: Mapping[int, tuple[array.array[float], int]]
    """Times of issue of each rank, and the place of the run's first collective among them."""
    last: Sequence[float]
    """When the last rank issued each collective, s."""
    synchronised: Sequence[bool]
    """Of each collective with the next one."""
    path: Sequence[_Path]

    def until(self, sequence: int) -> _Run:
        """The part before a collective."""
        count = sequence - self.first
        # Of the run's last collective nobody knows yet if the next one is synchronised with it.
        synchronised = [*self.synchronised[: max(0, count - 1)], False][:count]
        return dataclasses.replace(
            self, last=self.last[:count], synchronised=synchronised, path=self.path[:count]
        )

    def regular(self, i: int) -> bool:
        """Whether the period from i on is like the one before it or the one behind it."""
        p, path = self.period, self.path
        mine = path[i : i + p]
        return mine == path[i + p : i + 2 * p] or (i >= p and mine == path[i - p : i])

    def local(self, i: int, left: float) -> list[float]:
        """The time of each rank from a moment until it issued a collective, s."""
        return [at[begin + i] - left for at, begin in self.columns.values()]


def _measured(tracks: Mapping[int, Sequence[IssuedRun]], span: range, period: int) -> Slices[_Run]:
    """The run of these sequences, in slices of some collectives."""
    own = [
        next(run for run in runs if span.start < run.first + len(run.at))
        for runs in tracks.values()
    ]
    begins = [span.start - run.first for run in own]
    last: list[float] = []
    first: list[float] = []
    path: list[_Path] = []
    known: dict[_Path, _Path] = {}
    block = max(1, SLICE_VALUES // len(own))
    for begin in range(0, len(span), block):
        end = min(begin + block, len(span))
        cuts = [(run, at + begin, at + end) for run, at in zip(own, begins, strict=True)]
        times = list(zip(*[run.at[one:other] for run, one, other in cuts], strict=True))
        last += map(max, times)
        first += map(min, times)
        # One object for equal columns: comparing two periods then looks at no rank.
        path += [known.setdefault(one, one) for one in _path(cuts)]
        yield
    synchronised = [after >= before for after, before in zip(first[1:], last, strict=False)]
    columns = {rank: (run.at, at) for rank, run, at in zip(tracks, own, begins, strict=True)}
    return _Run(span.start, period, columns, last, [*synchronised, False], path)


def _path(cuts: Sequence[tuple[IssuedRun, int, int]]) -> Iterable[_Path]:
    rows = [run.signatures[begin:end] for run, begin, end in cuts]
    if all(row == rows[0] for row in rows):
        return rows[0]
    return [
        column[0] if column.count(column[0]) == len(column) else column
        for column in zip(*rows, strict=True)
    ]


# --------------------------------------------------------------------------------- leaving the path


_Tracks = Mapping[int, Sequence[IssuedRun]]


def _parting(tracks: _Tracks, run: _Run) -> Slices[int | None]:
    """The first collective that some ranks issued and others did not, in slices.

    Sizes may differ between ranks by design, as in an uneven all-gather: then each rank issues what
    it issues there in each step.
    """
    p = run.period
    for i, column in enumerate(run.path):
        if isinstance(column, int) or (p <= i and column is run.path[i - p]):
            continue
        past = _a_period_away(tracks, run.first + i, p)
        if past != dict(zip(tracks, column, strict=True)):
            return run.first + i
        yield
    return None


def _a_period_away(tracks: _Tracks, sequence: int, period: int) -> dict[int, int]:
    """Return each rank's issues a period before; at the samples' beginning, a period behind."""
    found = {}
    for rank, runs in tracks.items():
        one = _signature(runs, sequence - period)
        one = _signature(runs, sequence + period) if one is None else one
        if one is not None:
            found[rank] = one
    return found


def _signature(runs: Sequence[IssuedRun], sequence: int) -> int | None:
    for run in runs:
        if run.first <= sequence < run.first + len(run.signatures):
            return run.signatures[sequence - run.first]
    return None


# ---------------------------------------------------------------------------- segments and steps


def _steps(run: _Run) -> Slices[list[Step]]:
    """Return whole steps, in slices: they begin and end at synchronised collectives.

    Collectives that no period explains, as those of an evaluation, lie in no step.
    """
    i, p = 1, run.period
    steps = []
    while i + p <= len(run.last):
        if run.synchronised[i - 1] and run.synchronised[i + p - 1] and run.regular(i):
            steps.append((yield from _step(run, i)))
            i += p
        else:
            i += 1
    return steps


def _step(run: _Run, begin: int) -> Slices[Step]:
    ends = [i for i in range(begin, begin + run.period) if run.synchronised[i]]
    before, parts, slice_values = begin - 1, dict[int, tuple[int, list[float]]](), 0
    for number, i in enumerate(ends):
        local, part = run.local(i, run.last[before]), number * MOST_SEGMENTS // len(ends)
        part = number if len(ends) <= MOST_SEGMENTS else part
        if part in parts:
            local = list(map(operator.add, parts[part][1], local))
        parts[part] = (run.first + i, local)
        before, slice_values = i, slice_values + len(local)
        if slice_values > SLICE_VALUES // 4:
            slice_values = 0
            yield
    yield
    ranks = list(run.columns)
    total = [sum(one) for one in zip(*(local for _, local in parts.values()), strict=True)]
    segments = tuple(
        StepSegment(sequence, dict(zip(ranks, local, strict=True)))
        for sequence, local in parts.values()
    )
    wall = run.last[ends[-1]] - run.last[begin - 1]
    last = run.first + ends[-1]
    return Step(last, wall, dict(zip(ranks, total, strict=True)), segments, len(ends))
