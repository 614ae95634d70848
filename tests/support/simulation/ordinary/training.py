"""Training of an ordinary job, step by step: what each rank does, and how long it takes.

Belongs here: the length of a step, the script's saves, what a rank is doing now. Does not belong
here: the job's habits (`habits`), what agents tell of them (`agent`).
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
from collections.abc import Callable

from simulation.clock import VirtualTime
from simulation.ordinary.habits import EVERYBODY, Habits, Pause, Work
from simulation.steered.training import SteeredTraining
from simulation.training import Round

TRANSFER = 0.05
"""Share of a step."""
KEPT = 256
"""Newest steps of a round whose times are kept."""
_NOISES = 499
_GUESSED = 20
"""Newest steps that a guess of their time is from."""


Place = tuple[int, int]
"""A rank: its node's group rank, and its local rank."""


@dataclasses.dataclass(slots=True)
class TimedStep:
    """One step of a round."""

    begun: float
    local: dict[Place, float]
    """The time until a rank issues its collective, s."""
    pauses: dict[Place, list[tuple[Pause, float]]]
    """What a rank does first, and until when after the beginning, s."""

    def doing(self, place: Place, now: float) -> Pause | None:
        """Return the pause that a rank is in; None: it trains."""
        since = now - self.begun
        return next((what for what, end in self.pauses.get(place, ()) if since < end), None)

    def waits(self, place: Place, now: float) -> bool:
        """Return whether a rank has issued its collective and waits for the others."""
        return now - self.begun >= self.local.get(place, 0.0)


class OrdinaryTraining(SteeredTraining):
    """Rounds that do one step after the other."""

    habits: Habits

    def __init__(self, time: VirtualTime, two_at_once: Callable[[list[Round]], None]) -> None:
        super().__init__(time, two_at_once)
        self.logs: dict[Round, dict[int, TimedStep]] = {}
        """Of each living round, the newest steps by their numbers."""
        self._noise: dict[int, list[float]] = {}

    def step(self, found: Round) -> int:
        """Steps that the round has completed by now."""
        return found.done

    def _settle(self, found: Round) -> None:
        """Nothing is known of a step before it is done."""

    def _go(self, found: Round) -> None:
        idle = found.broken or found.paused or found.stuck
        if idle or len(found.members) < found.size:
            found.version += 1
            found.since = None
        elif found.since is None:
            self._next(found)

    def _next(self, found: Round) -> None:
        """Begin a step, if the ranks do not end before it."""
        found.version += 1
        found.since = self._time.now
        ends = any(step <= found.done for _, step in found.barriers.values())
        if ends or found.done >= self.target:
            saved = self.saved
            self._stop_here(found)
            if ends and not self.habits.saves_at_stop:
                self.saved = saved
            return
        under_way = self._timed(found, found.done + 1)
        log = self.logs.setdefault(found, {})
        log[found.done + 1] = under_way
        log.pop(found.done + 1 - KEPT, None)
        wall = max(under_way.local.values()) + TRANSFER * self.habits.step
        self._time.after(wall, self._done, found, found.version)

    def _timed(self, found: Round, step: int) -> TimedStep:
        habits, number = self.habits, step
        made = TimedStep(self._time.now, {}, {})
        works = list(habits.pauses(step))
        if step == found.base + 1:
            works = [Work(EVERYBODY, Pause.BATCH, habits.start)]
        for (place, member), local in itertools.product(found.members.items(), range(habits.local)):
            at, rank = 0.0, (place, local)
            for work in works:
                if work.who == EVERYBODY or rank == (work.who, 0):
                    at += work.seconds * self._share(member.rank, step)
                    made.pauses.setdefault(rank, []).append((work.what, at))
            usual = habits.step * (1 + found.slow.get(place, 0.0)) * self._share(member.rank, step)
            duty = habits.duty if rank == (0, 0) and number >= habits.duty_from else 0.0
            made.local[rank] = at + usual + duty * habits.step
        return made

    def _share(self, node: int, step: int) -> float:
        """Return the time of a step of this node over a usual one."""
        noise = self._noise.get(node)
        if noise is None:
            luck = random.Random(f"{self.habits.seed}/{node}/noise")
            level = 1 + luck.uniform(-1, 1) * self.habits.spread
            noise = [level * luck.gauss(1, self.habits.noise) for _ in range(_NOISES)]
            self._noise[node] = noise
        return max(0.2, noise[step % _NOISES])

    def _done(self, found: Round, version: int) -> None:
        if version != found.version:
            return
        found.done += 1
        self.best = max(self.best, found.done)
        habits = self.habits
        # What was begun before this step is written by its end.
        before = found.done - 1
        if habits.restores and habits.save.steps and before and before % habits.save.steps == 0:
            self.saved = max(self.saved, before)
        if not found.told:
            found.told = True
            for member in list(found.members.values()):
                member.on_first_step()
        if version == found.version:
            self._next(found)

    def newest_seconds(self, found: Round) -> float:
        """Return the time of the newest whole step, s."""
        log = self.logs.get(found, {})
        newest, before = log.get(found.done + 1), log.get(found.done)
        if newest is None or before is None:
            return self.habits.step
        return newest.begun - before.begun

    def usual_seconds(self, found: Round) -> float:
        """Return the middle time of the newest steps, as an agent guesses it, s."""
        log = self.logs.get(found, {})
        begun = [
            log[step].begun for step in range(found.done - _GUESSED, found.done) if step in log
        ]
        steps = [later - sooner for sooner, later in itertools.pairwise(begun)]
        return statistics.median(steps) if steps else self.habits.step

    def now(self, found: Round) -> TimedStep | None:
        """Return the step that is under way; None: none is."""
        return self.logs.get(found, {}).get(found.done + 1)

    def leave(self, found: Round, place: int, *, quietly: bool = False) -> None:
        """A node's processes end."""
        super().leave(found, place, quietly=quietly)
        if not found.members:
            self.logs.pop(found, None)
