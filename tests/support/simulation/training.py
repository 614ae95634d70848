"""Training processes of a job: they step, block, save and end together. Physics only.

A round steps exactly while the processes of all its members live and none is paused; it begins at
what was saved last. Belongs here: what processes do without anybody's order. Does not belong here:
agents, who are told what their own processes do.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from simulation.clock import VirtualTime

SAVE_EVERY = 10
"""Steps between the script's own checkpoints."""
PACE = 0.1
"""A step, s."""


class Member(Protocol):
    """A node's processes of one round."""

    @property
    def rank(self) -> int:
        """Node rank."""

    @property
    def master(self) -> tuple[int, str]:
        """Epoch and incarnation of the newest master that the node's agent has accepted."""

    @property
    def reached(self) -> bool:
        """Return whether the newest master's word comes to the node's agent, and soon."""

    @property
    def dying(self) -> bool:
        """Return whether SIGKILL is on its way to the processes. It takes some milliseconds."""

    def on_first_step(self) -> None:
        """Every rank of the round has completed a step."""

    def on_barrier(self, barrier_id: int, step: int) -> None:
        """The armed step is completed: the ranks of this node save and end."""

    def on_target(self) -> None:
        """The script has come to its end."""

    def on_peers_lost(self) -> None:
        """A collective broke: the processes raise or hang."""


class Pace(NamedTuple):
    """How fast a world steps from a moment on."""

    step: int
    """Steps completed by then."""
    since: float
    seconds: float
    """A step."""
    slow: Mapping[int, float]
    """Group rank to the share of `PACE` that it needs more than usual."""


@dataclasses.dataclass(eq=False)
class Round:
    """The processes of one world."""

    number: int
    world: str
    """Hash of its world: a master without memory may give a number twice."""
    size: int
    """Nodes."""
    master: tuple[int, str]
    """Epoch and incarnation of the one that assigned it."""
    members: dict[int, Member] = dataclasses.field(default_factory=dict)
    """By group rank."""
    paused: set[int] = dataclasses.field(default_factory=set)
    stuck: set[int] = dataclasses.field(default_factory=set)
    """Group ranks of which a process hangs."""
    slow: dict[int, float] = dataclasses.field(default_factory=dict)
    """As in `Pace`, now."""
    paces: list[Pace] = dataclasses.field(default_factory=list)
    """All of them so far, in order."""
    barriers: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Group rank to (arm id, step)."""
    base: int = 0
    done: int = 0
    """Steps completed at `since`."""
    since: float | None = None
    """Steps since; None: it does not step."""
    broken: bool = False
    """A member is gone: it never steps again."""
    told: bool = False
    version: int = 0

    @property
    def pace(self) -> float:
        """A step, s: all wait for the slowest."""
        return PACE * (1 + max(self.slow.values())) if self.slow else PACE

    def begun(self, first: int, last: int) -> Iterator[tuple[float, Pace]]:
        """Yield when each of these steps began, with the pace that held."""
        at = max(0, len(self.paces) - 1)
        while at and self.paces[at].step >= first:
            at -= 1
        for step in range(first, last + 1):
            while at + 1 < len(self.paces) and self.paces[at + 1].step < step:
                at += 1
            pace = self.paces[at]
            yield pace.since + (step - 1 - pace.step) * pace.seconds, pace

    def was_slow(self, place: int | None, share: float) -> bool:
        """Return whether a member, or any, has ever needed so much more than usual."""
        return any(
            more >= share and place in (None, other)
            for pace in self.paces
            for other, more in pace.slow.items()
        )

    @property
    def longest_stop(self) -> float:
        """The longest time for which it stood still and then stepped on, s."""
        return max(
            (
                later.since - sooner.since - (later.step - sooner.step) * sooner.seconds
                for sooner, later in itertools.pairwise(self.paces)
            ),
            default=0.0,
        )

    @property
    def follows(self) -> tuple[int, str]:
        """The newest master that one of its nodes follows: one that took it over counts."""
        return max(self.master, *(member.master for member in self.members.values()))


class Training:
    """All rounds of a job, and the checkpoint."""

    def __init__(self, time: VirtualTime, two_at_once: Callable[[list[Round]], None]) -> None:
        """`two_at_once` is told of the rounds that step when one completes its first step."""
        self._time = time
        self._two_at_once = two_at_once
        self.target = 1 << 30
        """Steps after which the script ends by itself."""
        self.saved = 0
        self.best = 0
        self.commits: list[tuple[int, int, float]] = []
        """(round, step, time) of what was saved at a barrier."""
        self.live: dict[tuple[int, str], Round] = {}

    def join(self, number: int, world: str, size: int, place: int, member: Member) -> Round:
        """A node's processes of a round begin."""
        found = self.live.get((number, world))
        if found is None or found.broken:
            found = self.live[number, world] = Round(number, world, size, member.master)
            found.base = found.done = self.saved
        found.members[place] = member
        if len(found.members) == size:
            self._settle(found)
            found.base = found.done = self.saved
            self._go(found)
        return found

    def leave(self, found: Round, place: int, *, quietly: bool = False) -> None:
        """A node's processes end. `quietly`: they had saved or finished, nobody is surprised."""
        member = found.members.pop(place, None)
        if member is None:
            return
        self._settle(found)
        first = not found.broken
        found.broken, found.since = True, None
        found.version += 1
        if not found.members:
            self.live.pop((found.number, found.world), None)
        if first and not quietly:
            for other in list(found.members.values()):
                other.on_peers_lost()

    def pause(self, found: Round, place: int, *, paused: bool) -> None:
        """A node's processes stand still, or go on."""
        if place not in found.members:
            return
        self._settle(found)
        (found.paused.add if paused else found.paused.discard)(place)
        self._go(found)

    def hang(self, found: Round, place: int, *, stuck: bool) -> None:
        """A process of a node hangs, or goes on."""
        if place not in found.members:
            return
        self._settle(found)
        (found.stuck.add if stuck else found.stuck.discard)(place)
        self._go(found)

    def slow_down(self, found: Round, place: int, share: float) -> None:
        """A node's processes need so much more for each step than usual; 0: no more."""
        if place not in found.members or found.slow.get(place, 0.0) == share:
            return
        self._settle(found)
        found.slow = {other: more for other, more in found.slow.items() if other != place}
        if share:
            found.slow[place] = share
        self._go(found)

    def set_barrier(self, found: Round, place: int, barrier_id: int, step: int) -> int:
        """The ranks of a node see a barrier; the step at which they do."""
        self._settle(found)
        seen = found.done
        if seen < step and place in found.members:
            found.barriers[place] = (barrier_id, step)
        self._go(found)
        return seen

    def retarget(self, target: int) -> None:
        """The script is to end after this many steps."""
        self.target = target
        for found in list(self.live.values()):
            self._settle(found)
            self._go(found)

    def step(self, found: Round) -> int:
        """Steps that the round has completed by now."""
        if found.since is None:
            return found.done
        more = int((self._time.now - found.since) / found.paces[-1].seconds + 1e-6)
        return min(found.done + more, self._limit(found))

    def _limit(self, found: Round) -> int:
        armed = min((step for _, step in found.barriers.values()), default=self.target)
        return max(found.done, min(self.target, armed))

    def _settle(self, found: Round) -> None:
        if found.since is not None:
            done = self.step(found)
            found.since += (done - found.done) * found.paces[-1].seconds
            found.done = done
            self.best = max(self.best, done)
            self.saved = max(self.saved, done // SAVE_EVERY * SAVE_EVERY)

    def _go(self, found: Round) -> None:
        """Step if nothing is in the way, and be told of the next thing that happens."""
        idle = found.broken or found.paused or found.stuck
        able = len(found.members) == found.size and not idle
        found.version += 1
        if not able:
            found.since = None
            return
        pace, stood = found.pace, found.since is None
        if found.since is None:
            found.since = self._time.now
        if stood or pace != found.paces[-1].seconds or found.slow != found.paces[-1].slow:
            found.paces.append(Pace(found.done, found.since, pace, found.slow))
        first = found.done + 1 if not found.told else self._limit(found)
        next_step = min(first, self._limit(found))
        when = found.since + max(0, next_step - found.done) * pace
        self._time.at(when, self._milestone, found, found.version)

    def _milestone(self, found: Round, version: int) -> None:
        if version != found.version or found.since is None:
            return
        self._settle(found)
        if not found.told and found.done > found.base:
            found.told = True
            stepping = [other for other in self.live.values() if other.since is not None]
            if len(stepping) > 1:
                self._two_at_once(stepping)
            for member in list(found.members.values()):
                member.on_first_step()
        if version == found.version:
            self._stop_here(found)

    def _stop_here(self, found: Round) -> None:
        at = {
            place: barrier for place, barrier in found.barriers.items() if barrier[1] <= found.done
        }
        if at:
            self.saved = max(self.saved, found.done)
            self.commits.append((found.number, found.done, self._time.now))
            found.since, found.version = None, found.version + 1
            for place, (barrier_id, _) in sorted(at.items()):
                if place in found.members:
                    found.members[place].on_barrier(barrier_id, found.done)
        elif found.done >= self.target:
            found.since, found.version = None, found.version + 1
            for member in list(found.members.values()):
                member.on_target()
        else:
            self._go(found)
