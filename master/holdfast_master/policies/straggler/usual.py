"""The usual local time of each rank, and how far a window lies above it.

The model: log(local time) = level of the rank + change that all share + its own excess + noise. The
level is the lower quartile of the rank's earliest windows without an excess: it needs no peers, so
unequal ranks, two nodes, and half of the nodes slow are decided. The shared change is the middle of
the ranks' changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from holdfast_master.policies.straggler.slices import SLICE_RANKS, Slices

PAST_WINDOWS = 20
"""Earliest windows without an excess that make a level."""
ENOUGH_WINDOWS = 5
"""Windows from which on a rank is judged against its own past."""
_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_HALF = 1.349
"""Length of the shortest half of a normal distribution, in standard deviations."""
_SUDDEN = 0.05
"""A shared change that is further from the expected one is sudden, logarithm."""
_SHORTEST = 1e-6
"""s: a local time counts as at least this; its logarithm is finite."""


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """The earliest windows of one rank that had no excess."""

    times: tuple[float, ...] = ()
    """Logarithms of its local times less the shared change."""
    level: float | None = None
    """Their lower quartile; None: they are too few."""
    noise: float = 0.0
    """Their standard deviation."""

    def with_window(self, time: float) -> Past:
        """The past with one more window, until it has enough."""
        if len(self.times) >= PAST_WINDOWS:
            return self
        times = (*self.times, time)
        if len(times) < ENOUGH_WINDOWS:
            return Past(times)
        # An excess that began within the past does not raise a quartile at once.
        return Past(times, _lower_quartile(times), spread(times))


@dataclasses.dataclass(frozen=True, slots=True)
class Usual:
    """Knowledge of the ranks' pasts."""

    shared: float = 0.0
    """The last change that all ranks shared, logarithm."""
    changes: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Each rank's last change against its level, logarithms."""
    ranks: Mapping[int, Past] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Deviation:
    """How far one rank lies above its usual time in one window, logarithms."""

    own: float | None
    """Above its own past; None: it has not enough of it."""
    peers: float
    """Above the middle of its peers."""
    noise: float
    """Standard deviation of windows without an excess."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deviations:
    """All ranks in one window, logarithms."""

    times: Mapping[int, float]
    shared: float
    """The change that all share."""
    changes: Mapping[int, float]
    """Of each rank against its level, where it has one."""
    ranks: Mapping[int, Deviation]


def middle(values: Iterable[float]) -> float:
    """The low median: with an even number the lower of the two in the middle."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def shared_change(usual: Usual, changes: Mapping[int, float]) -> float:
    """The middle of the ranks' changes.

    With an even number of ranks the middle is an interval. Its low end holds: half of the ranks may
    be slow. A low end that is suddenly elsewhere may be the end of a group: half of the ranks got
    faster, or the other half is noisy. Then the value nearest to the expected one holds, between
    the lower quartile and the high end. Expected is the last shared change, moved as the ranks
    moved since.
    """
    low, high = _ends(changes.values())
    moves = [one - usual.changes[rank] for rank, one in changes.items() if rank in usual.changes]
    expected = usual.shared + (_nearest(0.0, *_ends(moves)) if moves else 0.0)
    if abs(low - expected) <= _SUDDEN:
        return low
    return _nearest(expected, _lower_quartile(changes.values()), high)


def _lower_quartile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4]


def _ends(values: Iterable[float]) -> tuple[float, float]:
    """The low and the high median."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]


def _nearest(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def spread(values: Sequence[float]) -> float:
    """The standard deviation by the median absolute deviation."""
    centre = middle(values)
    return _SIGMA * middle([abs(one - centre) for one in values])


def shortest_half(values: Iterable[float]) -> float:
    """The standard deviation by the shortest interval that holds half of the values.

    Half of the ranks may be slow; a median of deviations would then contain their excess.
    """
    ordered = sorted(values)
    half = (len(ordered) + 1) // 2
    return min(high - low for low, high in zip(ordered, ordered[half - 1 :], strict=False)) / _HALF


def logarithms(seconds: Mapping[int, float]) -> dict[int, float]:
    """The logarithm of each rank's local time."""
    return {rank: math.log(max(one, _SHORTEST)) for rank, one in seconds.items()}


def deviations(
    usual: Usual, times: Mapping[int, float], peers: Mapping[int, int]
) -> Slices[Deviations]:
    """Each rank's deviation in a window, in slices.

    times: logarithms of local times. peers: the set of peers of each rank.
    """
    changes = {
        rank: times[rank] - past.level
        for rank, past in usual.ranks.items()
        if past.level is not None and rank in times
    }
    shared = shared_change(usual, changes) if changes else middle(times.values())
    yield
    own = {rank: change - shared for rank, change in changes.items()}
    among = _against_peers(times, peers)
    compared = {rank: one - among[peers[rank]] for rank, one in times.items()}
    yield
    noise = _noise(usual, own or compared, times)
    yield
    ranks = {rank: Deviation(own.get(rank), compared[rank], noise[rank]) for rank in times}
    return Deviations(times, shared, changes, ranks)


def learned(usual: Usual, window: Deviations, quiet: Iterable[int]) -> Slices[Usual]:
    """The pasts with this window added for the ranks that had no excess, in slices."""
    ranks = dict(usual.ranks)
    for count, rank in enumerate(quiet, 1):
        ranks[rank] = ranks.get(rank, Past()).with_window(window.times[rank] - window.shared)
        if count % SLICE_RANKS == 0:
            yield
    return Usual(window.shared, window.changes, ranks)


def _noise(usual: Usual, now: Mapping[int, float], ranks: Iterable[int]) -> dict[int, float]:
    """The noise of each rank: the greatest of its past, all pasts, and this window."""
    past = {rank: one.noise for rank, one in usual.ranks.items() if one.level is not None}
    common = middle(past.values()) if past else 0.0
    floor = max(common, shortest_half(now.values()) if len(now) > 2 else 0.0)
    return {rank: max(floor, past.get(rank, 0.0)) for rank in ranks}


def _against_peers(times: Mapping[int, float], peers: Mapping[int, int]) -> Mapping[int, float]:
    members: dict[int, list[float]] = {}
    for rank, one in times.items():
        members.setdefault(peers[rank], []).append(one)
    return {name: middle(one) for name, one in members.items()}
