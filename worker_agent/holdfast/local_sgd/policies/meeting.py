"""Meeting of replicas at the end of a step, in rounds without a barrier: who came, what follows.

Belongs here: when a replica calls the others, the decision that closes a meeting, and its text in
the store. Does not belong here: the store and the clock (`quorum_turns`), quorum and window
(`quorum`), the round itself.

Meetings are numbered. A replica *arrives* at the newest one that is open, at the end of a step, and
waits there until it closes. The first to arrive calls the others, who look at the end of each step.
All who wait there propose a decision, and the store takes the first. So nobody has to be the one
who decides, and none can be missed.

A replica whose next step would end behind the time of the round calls the others before that step.
So a slow replica is in the rounds, and no other waits for one of its steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from holdfast.local_sgd.policies import quorum
from holdfast.local_sgd.policies.quorum import Lags, QuorumSettings
from holdfast.local_sgd.policies.schedule import (
    Entry,
    Progress,
    StepSettings,
    Turn,
    enter,
    is_triggering,
)

_EARLIEST: Final = 0.5
"""Share of the time of a round before which no replica calls: rounds of less would double the bytes
that a user has asked for."""


class MeetingSettings(QuorumSettings, StepSettings, Protocol):
    """What a meeting asks of `LocalSGDConfig`."""

    @property
    def whole_round_interval(self) -> int: ...  # noqa: D102 - see the class that has it


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """A replica at a meeting."""

    at: float
    """When the one who decides saw it, on its own clock."""
    progress: Progress


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """What was decided; the same for all."""

    entry: Entry
    rounds: int
    """That were made, this one included."""
    replicas: tuple[int, ...]
    """Who met, in ascending order."""
    lags: Lags
    """For the window of the next meeting."""
    by: int
    """Replica that decided: no two texts are equal, so each knows if its own was taken."""
    holders: tuple[int, ...] = ()
    """Who has the newest round, once this one is made, in ascending order."""

    def to_text(self) -> str:
        """Return the decision as one line."""
        lags, names = self.lags, ",".join(map(str, self.replicas))
        return (
            f"{self.entry.value} {self.rounds} {names} {lags.mean!r} {lags.variance!r} "
            f"{lags.count} {self.by} {','.join(map(str, self.holders))}"
        )

    @classmethod
    def from_text(cls, text: str) -> Closed:
        """Parse what `to_text` returns; raises ValueError."""
        entry, rounds, names, mean, variance, count, by, holders = text.split(" ")
        lags = Lags(float(mean), float(variance), int(count))
        return cls(Entry(entry), int(rounds), _numbers(names), lags, int(by), _numbers(holders))


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """What one who waits would decide now."""

    closed: Closed | None
    """None: the meeting stays open."""
    reason: str


def arrival(replica: int, progress: Progress) -> str:
    """Return the line by which a replica says that it is there."""
    return f"{replica} {progress.steps} {int(progress.exhausted)}\n"


def arrivals(text: str) -> dict[int, Progress]:
    """Parse the lines of `arrival`; raises ValueError. The first line of a replica counts."""
    found: dict[int, Progress] = {}
    for line in text.splitlines():
        replica, steps, exhausted = line.split(" ")
        found.setdefault(int(replica), Progress(int(steps), exhausted == "1"))
    return found


def calls(
    turn: Turn, now: float, step_seconds: float, lags: Lags, settings: MeetingSettings
) -> bool:
    """Return whether a replica that has data calls the others, at the end of a step.

    Args:
        turn: Its time.
        now: Seconds of the clock that gave `turn.started`.
        step_seconds: Its last step.
        lags: Those of past meetings.
        settings: τ, and the bounds of the window.
    """
    if is_triggering(turn, now, settings):
        return True
    elapsed, time = now - turn.started, settings.local_sgd_sync_time
    # Before any lag is known the window is its upper bound, which says nothing of the others.
    length = quorum.window(lags, settings) if lags.count else 0.0
    return elapsed >= _EARLIEST * time and elapsed + step_seconds > time + length


def is_whole(rounds: int, settings: MeetingSettings) -> bool:
    """Return whether the round after this many gives each replica the longest window."""
    interval = settings.whole_round_interval
    return interval > 0 and (rounds + 1) % interval == 0


def propose(
    now: float,
    seen: Mapping[int, Arrived],
    live: AbstractSet[int],
    before: Closed,
    settings: MeetingSettings,
) -> Proposal:
    """Return whether the meeting closes now, with whom, and what they do.

    Args:
        now: Seconds of the clock of the one who asks.
        seen: Who has arrived.
        live: Replicas that are waited for.
        before: The rounds so far, the lags with those of the last meeting, the one who asks, and
            who has the newest round; the other fields say nothing.
        settings: Quorum, bounds, least number of steps.
    """
    lags = Lags() if is_whole(before.rounds, settings) else before.lags
    decision = quorum.close(now, {one: its.at for one, its in seen.items()}, live, lags, settings)
    if not decision.closes:
        return Proposal(None, decision.reason)
    if before.holders and not set(before.holders) & set(decision.replicas):
        return Proposal(None, f"{decision.reason}, but nobody has the newest round")
    entered = enter([seen[one].progress for one in decision.replicas], settings)
    if entered.entry is Entry.LAST and len(decision.replicas) < len(live):
        return Proposal(None, f"{decision.reason}, but the last round has all")
    is_made = entered.entry is not Entry.SKIP
    closed = dataclasses.replace(
        before,
        entry=entered.entry,
        rounds=before.rounds + is_made,
        replicas=decision.replicas,
        holders=decision.replicas if is_made else before.holders,
    )
    return Proposal(closed, f"{decision.reason}; {entered.reason}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def quorum_at(seen: Mapping[int, Arrived], live: int, settings: QuorumSettings) -> float:
    """Return when the quorum of a closed meeting was there, as one of its members saw it."""
    times = sorted(one.at for one in seen.values())
    return times[min(quorum.needed(live, settings), len(times)) - 1]
