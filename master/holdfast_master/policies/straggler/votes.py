"""Votes of windows: the ranks that are slower than usual in one window.

A window votes against a rank whose excess is at least `slowdown_percent` of a step, at least 2.5
times its noise and at least three times the clock's error. The excess is taken from the rank's own
past, and from its peers where they do the same work by design. Where the work done is known, the
rank must be slow for its work and in seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

from holdfast_master.policies.straggler.slices import SLICE_RANKS, Slices
from holdfast_master.policies.straggler.usual import (
    Deviations,
    Usual,
    deviations,
    learned,
    logarithms,
    middle,
)
from holdfast_master.policies.straggler.window import RankTime, Window
from holdfast_wire.messages import StragglerPolicy

NOISE_FACTOR = 2.5
"""Times the noise that an excess must reach."""
CLOCK_FACTOR = 3.0
"""Times the bound of the clocks' error that an excess must reach."""
RECENT_WINDOWS = 20
"""Windows in which the beginning of an excess is looked for."""
_LEAST_USUAL = 0.01
"""Share of a step that is not called excess, whatever the ranks' times say."""
_NO_PEERS = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Vote:
    """One window's vote about a rank."""

    first_step: int
    excess: float
    """s of each step; below 0: faster than usual."""
    percent: float
    """Of a step without the excess of the slowest rank."""
    slow: bool


@dataclasses.dataclass(frozen=True, slots=True)
class VoteRecord:
    """The policy's memory of one world."""

    windows: int = 0
    by_time: Usual = dataclasses.field(default_factory=Usual)
    by_work: Usual = dataclasses.field(default_factory=Usual)
    """Of the local times for equal work; empty while the work is not known."""
    votes: Mapping[int, tuple[Vote, ...]] = dataclasses.field(default_factory=dict)
    """The newest of each rank."""
    steps: tuple[float, ...] = ()
    """Wall times without the excess of the slowest rank, of the earliest windows."""
    slower: tuple[tuple[int, float], ...] = ()
    """First step of the newest windows, and how much slower all ranks together were, percent."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Excess:
    """Of one rank in one window, s of a step."""

    seconds: float
    noise: float


class VoteTally:
    """One window beside the record before it. `count` comes first."""

    by_time: Deviations
    by_work: Deviations | None
    """None: the work is not known."""
    error: float
    """Of the middle rank's local time, by its clock, s."""
    usual_step: float
    """Wall time of a step without the excess of the slowest rank, s."""

    def __init__(
        self,
        record: VoteRecord,
        window: Window,
        policy: StragglerPolicy,
        ranks: Mapping[int, RankTime],
        references: Mapping[str, float],
    ) -> None:
        self.record, self.window, self.policy, self.ranks = record, window, policy, ranks
        self.ratios = _ratios(ranks, references)
        self.excess: dict[int, _Excess] = {}

    def count(self) -> Slices[None]:
        """Compute the excess of each rank, in slices."""
        record, window, ranks = self.record, self.window, self.ranks
        peers = {rank: _NO_PEERS if one.peers is None else one.peers for rank, one in ranks.items()}
        times = logarithms({rank: one.local for rank, one in ranks.items()})
        self.by_time = yield from deviations(record.by_time, times, peers)
        self.by_work = None
        if for_work := _for_work(times, ranks):
            self.by_work = yield from deviations(record.by_work, for_work, peers)
        for count, rank in enumerate(ranks, 1):
            self.excess[rank] = self._least_excess(rank)
            if count % SLICE_RANKS == 0:
                yield
        self.error = middle(one.error for one in ranks.values())
        slowest = max(one.seconds for one in self.excess.values())
        self.usual_step = max(window.step - max(slowest, 0.0), window.step * _LEAST_USUAL)

    def _least_excess(self, rank: int) -> _Excess:
        one = self._excess(rank, self.by_time)
        if self.by_work is None:
            return one
        return min(one, self._excess(rank, self.by_work), key=lambda excess: excess.seconds)

    def _excess(self, rank: int, deviations: Deviations) -> _Excess:
        one, mine = deviations.ranks[rank], self.ranks[rank]
        above = [] if one.own is None else [one.own]
        if mine.peers is not None or self.reference_is_slow(mine.node):
            above.append(one.peers)
        seconds = mine.local * -math.expm1(-max(above)) if above else 0.0
        return _Excess(seconds, mine.local * one.noise)

    def reference_is_slow(self, node: str) -> bool:
        """Whether preflight found the node slow, too: half the slowdown is enough beside it."""
        return self.ratios.get(node, 1.0) >= 1 + self.policy.slowdown_percent / 200

    def vote(self, rank: int) -> Vote:
        """Return this window's vote about a rank."""
        one = self.excess[rank]
        percent = 100 * one.seconds / self.usual_step
        error = max(self.ranks[rank].error, self.error)
        floor = max(NOISE_FACTOR * one.noise, CLOCK_FACTOR * error)
        slow = percent >= self.policy.slowdown_percent and one.seconds >= floor
        return Vote(self.window.first_step, one.seconds, percent, slow)

    @functools.cached_property
    def usual_places(self) -> tuple[float, ...]:
        """The middle local time of each segment of a step, s; empty: the segments differ."""
        places = [one.places for one in self.ranks.values()]
        if len({len(one) for one in places}) != 1:
            return ()
        return tuple(middle(column) for column in zip(*places, strict=True))

    @functools.cached_property
    def usual_transfer(self) -> float | None:
        """The middle time of communication of a step, s; None: no rank has measured it."""
        known = [one.transfer for one in self.ranks.values() if one.transfer is not None]
        return middle(known) if known else None

    def recorded(self) -> Slices[VoteRecord]:
        """The record with this window, in slices."""
        before, keep = self.record, max(RECENT_WINDOWS, self.policy.votes_out_of)
        votes = {rank: before.votes.get(rank, ()) for rank in self.window.ranks}
        quiet = []
        for count, rank in enumerate(self.ranks, 1):
            vote = self.vote(rank)
            votes[rank] = (*votes[rank], vote)[-keep:]
            if vote.percent < self.policy.slowdown_percent / 2:
                quiet.append(rank)
            if count % SLICE_RANKS == 0:
                yield
        by_time, by_work = (yield from learned(before.by_time, self.by_time, quiet)), before.by_work
        if self.by_work is not None:
            by_work = yield from learned(before.by_work, self.by_work, quiet)
        return VoteRecord(before.windows + 1, by_time, by_work, votes, *self._of_all(keep))

    def _of_all(self, keep: int) -> tuple[tuple[float, ...], tuple[tuple[int, float], ...]]:
        """The record's `steps` and `slower`: apart from the slowest rank's excess."""
        steps, slower = self.record.steps, self.record.slower
        if len(self.ranks) < len(self.window.ranks):
            return steps, slower  # a section made this step longer
        if len(steps) < RECENT_WINDOWS:
            steps = (*steps, self.usual_step)
        if any(one.own is None for one in self.by_time.ranks.values()):
            # A slow rank could not be told from all of them yet.
            return steps, slower
        percent = 100 * (self.usual_step / sorted(steps)[(len(steps) - 1) // 4] - 1)
        return steps, (*slower, (self.window.first_step, percent))[-keep:]


def _for_work(times: Mapping[int, float], ranks: Mapping[int, RankTime]) -> dict[int, float]:
    """The times for equal work; empty: the work of a rank is not known."""
    if any(one.work <= 0 for one in ranks.values()):
        return {}
    return {rank: times[rank] - math.log(one.work) for rank, one in ranks.items()}


def _ratios(ranks: Mapping[int, RankTime], references: Mapping[str, float]) -> dict[str, float]:
    """Each node's reference figure over the middle one."""
    mine = {one.node: references[one.node] for one in ranks.values() if one.node in references}
    if len(mine) < 2:
        return {}
    usual = middle(mine.values())
    return {node: one / usual for node, one in mine.items()} if usual > 0 else {}
