"""Quorum of a round without a barrier: who is in it, how long it waits, what becomes of the late.

Belongs here: the decision to close a round, the learned wait, the delta of a replica that came too
late. Does not belong here: the weights of those who are in it (`weights`), who lives (the roster).

A replica *arrives* when it is ready to begin the round. When the quorum has arrived, a *window*
opens, and when it ends, or when all live replicas have arrived, the round closes with those who
are there. One process decides, because two clocks would disagree; the others read its decision.

The window comes from the lags of past arrivals after their quorum. Of each round three times the
median lag counts, which a minority of slow replicas does not move; the window is mean + 2σ of these
over the rounds, within its bounds. Lags of the late count too, or else a short window would never
see that it is too short; not those beyond the upper bound, which no window would have caught.

A *late* replica finds its round closed. It takes the new anchor A' and goes on from A' - dᵏΔ, where
Δ is its own delta, k the rounds that it missed, and d `late_discount`. So its next delta contains
the late one, once, discounted, and it trains on at once. Its steps or tokens are discounted alike.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

_WEIGHT: Final = 0.1
"""Weight of the newest round in mean and variance, a memory of about ten rounds: nodes change."""
_MEDIANS: Final = 3.0
"""Median lags that cover a round: seven of eight lags, if they are spread exponentially."""
_DEVIATIONS: Final = 2.0
"""Standard deviations above the mean that a window covers: of 20 ordinary rounds about 19."""


class QuorumSettings(Protocol):
    """What the quorum asks of `LocalSGDConfig`."""

    @property
    def quorum(self) -> float | None: ...  # noqa: D102 - see the class that has it
    @property
    def grace_min_seconds(self) -> float: ...  # noqa: D102
    @property
    def grace_max_seconds(self) -> float: ...  # noqa: D102
    @property
    def late_discount(self) -> float: ...  # noqa: D102


@dataclasses.dataclass(frozen=True, slots=True)
class Lags:
    """Seconds that would have covered each of the past rounds after its quorum."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a round closes now."""

    closes: bool
    replicas: tuple[int, ...] = ()
    """In the round, in ascending order; none while it is open."""
    wait_until: float | None = None
    """When to ask again, at the latest; None: only after an arrival or a death."""
    quorum_at: float | None = None
    """When the quorum had arrived; None: it has not."""
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Carry:
    """What a late replica does with its delta."""

    factor: float
    """It goes on from A' - factor·Δ; 0: from A'."""
    steps: float
    """Steps or tokens that its next report has from before."""
    reason: str


def needed(live: int, settings: QuorumSettings) -> int:
    """Return the number of replicas that must have arrived."""
    share = 1.0 if settings.quorum is None else settings.quorum
    # 0.1 · 30 is 3.0000000000000004, and means 3.
    return max(1, math.ceil(share * live - 1e-9))


def window(lags: Lags, settings: QuorumSettings) -> float:
    """Return the seconds that a round waits after its quorum; before any lag the upper bound."""
    if not lags.count:
        return settings.grace_max_seconds
    learned = lags.mean + _DEVIATIONS * math.sqrt(lags.variance)
    return min(max(learned, settings.grace_min_seconds), settings.grace_max_seconds)


def close(
    now: float,
    arrived: Mapping[int, float],
    live: AbstractSet[int],
    lags: Lags,
    settings: QuorumSettings,
) -> Decision:
    """Return whether the round closes now, and with whom.

    Ask after each arrival until the quorum is there; then when all have arrived, when somebody has
    died, and at `wait_until`.

    Args:
        now: Seconds of the clock of the process that decides.
        arrived: Time of arrival by replica, on that clock; the dead may be among them.
        live: Replicas that are waited for. The dead never are, and are in no round.
        lags: Those of past rounds.
        settings: Quorum and bounds.
    """
    least = needed(len(live), settings)
    if len(arrived) < least or not live:
        return _short(len(arrived), least, len(live))
    times = sorted(at for replica, at in arrived.items() if replica in live)
    if len(times) < least:
        return _short(len(times), least, len(live))
    quorum_at = times[least - 1]
    if len(times) == len(live):
        reason = f"all {len(live)} live replicas have arrived"
    else:
        length = window(lags, settings)
        here = f"{len(times)} of {len(live)} live replicas have arrived, {least} are the quorum"
        if now < quorum_at + length:
            return Decision(
                closes=False,
                wait_until=quorum_at + length,
                quorum_at=quorum_at,
                reason=f"{here}; the others have {quorum_at + length - now:.3g} s",
            )
        reason = f"{here}; the window of {length:.3g} s is over"
    replicas = tuple(sorted(replica for replica in arrived if replica in live))
    return Decision(closes=True, replicas=replicas, quorum_at=quorum_at, reason=reason)


def learn(lags: Lags, seconds: Iterable[float], settings: QuorumSettings) -> Lags:
    """Return the lags after one more round. Call it when the round after that one closes.

    Args:
        lags: Before.
        seconds: From the round's quorum to each arrival for it after that, in the window or late.
        settings: Upper bound.
    """
    caught = sorted(one for one in seconds if 0 < one <= settings.grace_max_seconds)
    if not caught:
        return lags
    covering = _MEDIANS * caught[(len(caught) - 1) // 2]
    if not lags.count:
        return Lags(covering, 0.0, 1)
    difference = covering - lags.mean
    mean = lags.mean + _WEIGHT * difference
    variance = (1 - _WEIGHT) * (lags.variance + _WEIGHT * difference * difference)
    return Lags(mean, variance, lags.count + 1)


def carry(steps: float, missed: int, settings: QuorumSettings) -> Carry:
    """Return what becomes of a delta whose round has closed without it.

    Args:
        steps: Steps or tokens that the delta has.
        missed: Rounds that have closed since it left its anchor, at least 1.
        settings: Discount.

    Raises:
        ValueError: no round was missed; the delta belongs into the open round, whole.
    """
    if missed < 1:
        raise ValueError(
            f"missed={missed}: a delta whose round is open is not late; begin the round with it"
        )
    factor = settings.late_discount**missed
    rounds = "1 round" if missed == 1 else f"{missed} rounds"
    if factor == 0:
        return Carry(0.0, 0.0, f"late by {rounds}: thrown away, as late_discount=0 says")
    return Carry(
        factor, steps * factor, f"late by {rounds}: carried into the next one by {factor:.3g}"
    )


def _short(here: int, least: int, live: int) -> Decision:
    return Decision(
        closes=False,
        reason=f"{here} of {live} live replicas have arrived, {least} are needed",
    )
