"""Measures a recovery from a log of steps. Pure: events in, durations out.

The rule, for every system: a step counts once *all* ranks of its round have completed it; a new
round is one that nobody had joined before the fault; "next step" is the first step that counts in
a new round. Steps done a second time are reported apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.recovery.steplog import Event

_STAGES = ("started", "imported", "joined", "built", "restored")


@dataclass(frozen=True, slots=True, order=True)
class Completed:
    """One step of one round, at the time its last rank completed it."""

    t: float
    round: int
    step: int
    world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A recovery, measured. All times in seconds."""

    total_s: float
    """Fault (or start of the newcomer) → next step."""
    restore_s: float
    """Seconds that the slowest rank's script itself spent on loading its checkpoint."""
    pause_s: float
    """The longest gap between two steps that count, from the fault to the next step."""
    save_s: float
    """The checkpoint at a step boundary that the system asked for; 0 where it asked for none."""
    redone_steps: int
    """Steps that had counted before the fault and had to be done again."""
    world: int
    """Ranks in the new round."""
    false_starts: int
    """Processes that were started after the fault and are not part of the new round."""
    stages: dict[str, float]
    """Where the time went: until the last rank's process started, imported torch, joined, built
    model and optimizer, restored, completed its first step. The sum is ``total_s``."""

    @property
    def net_s(self) -> float:
        """Return the total without the script's own restore."""
        return self.total_s - self.restore_s

    @property
    def net_pause_s(self) -> float:
        """Return the pause without the script's own save and restore."""
        return self.pause_s - self.restore_s - self.save_s


def completed_steps(events: Iterable[Event]) -> list[Completed]:
    """Return the steps that all ranks of their round completed, by time."""
    times: dict[tuple[int, int, int], dict[int, float]] = {}
    for event in events:
        if event.event != "step":
            continue
        if event.round is not None and event.world is not None and event.step is not None:
            times.setdefault((event.round, event.step, event.world), {})[event.rank] = event.t
    return sorted(
        Completed(t=max(by_rank.values()), round=round_id, step=step, world=world)
        for (round_id, step, world), by_rank in times.items()
        if len(by_rank) == world
    )


def rounds_before(events: Iterable[Event], moment: float) -> set[int]:
    """Return the rounds that somebody had joined before ``moment``."""
    return {event.round for event in events if event.round is not None and event.t < moment}


def next_step(events: Sequence[Event], moment: float, world: int | None = None) -> Completed | None:
    """Return the first step that counts in a round begun after ``moment``.

    With ``world``, only rounds of that many ranks are looked at.
    """
    old = rounds_before(events, moment)
    for done in completed_steps(events):
        if done.round not in old and world in (None, done.world):
            return done
    return None


def went_on(events: Sequence[Event], moment: float, until: float) -> int:
    """Return how many steps counted after ``moment`` in rounds begun before it.

    0 where the last of them was not within a second of ``until``: whoever stopped training has
    noticed something.
    """
    old = rounds_before(events, moment)
    times = [d.t for d in completed_steps(events) if d.round in old and moment < d.t <= until]
    return len(times) if times and until - times[-1] < 1.0 else 0


def recovery(
    events: Sequence[Event], moment: float, *, world: int | None = None, quiet_from: float = 0.0
) -> Recovery | None:
    """Measure what followed a fault at ``moment``; None while no new round has done a step.

    With ``world``, only rounds of that many ranks are looked at. The pause is looked for only after
    ``quiet_from``, where an earlier fault's pause reaches past ``moment``.
    """
    reached = next_step(events, moment, world)
    if reached is None:
        return None
    members = {event.pid for event in events if event.round == reached.round}
    between = [event for event in events if moment < event.t < reached.t]
    restored = [e for e in between if e.event == "restored" and e.round == reached.round]
    return Recovery(
        total_s=reached.t - moment,
        restore_s=max((event.seconds or 0.0 for event in restored), default=0.0),
        pause_s=_longest_gap(events, max(moment, quiet_from), reached.t),
        save_s=max((e.seconds or 0.0 for e in between if e.event == "saved" and e.last), default=0),
        redone_steps=_redone(events, reached, restored),
        world=reached.world,
        false_starts=len(
            {e.pid for e in between if e.event == "started" and e.t > quiet_from} - members
        ),
        stages=_stages([e for e in between if e.pid in members], moment, reached.t),
    )


def _longest_gap(events: Iterable[Event], moment: float, until: float) -> float:
    """Return the longest time without a step that counts, from the last one before ``moment``."""
    times = [done.t for done in completed_steps(events) if done.t <= until]
    first = max((t for t in times if t <= moment), default=moment)
    seen = [first, *(t for t in times if t > moment)]
    return max((later - earlier for earlier, later in pairwise(seen)), default=0.0)


def _redone(events: Iterable[Event], reached: Completed, restored: Sequence[Event]) -> int:
    """Return how far behind the last step of the older rounds the new round began."""
    done = [c.step for c in completed_steps(events) if c.t < reached.t and c.round != reached.round]
    begun_at = min((event.step or 0 for event in restored), default=reached.step - 1)
    return max(0, max(done, default=0) - begun_at)


def _stages(events: Sequence[Event], moment: float, until: float) -> dict[str, float]:
    """Cut the time into stages, each ending when the slowest rank of the new round ends it."""
    stages: dict[str, float] = {}
    reached = moment
    for name in _STAGES:
        ended = max((event.t for event in events if event.event == name), default=reached)
        stages[name] = max(0.0, ended - reached)
        reached = max(reached, ended)
    stages["first step"] = until - reached
    return stages
