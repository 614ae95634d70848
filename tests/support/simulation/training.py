"""What the training processes of a job do together: step, block, save, end. Physics only.

A round steps exactly while the processes of all its members live and none is paused; it begins at
what was saved last. Belongs here: what processes do without anybody's order. Does not belong here:
agents, who are told what their own processes do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from simulation.clock import VirtualTime

SAVE_EVERY = 10
"""Steps between the script's own checkpoints."""
PACE = 0.1
"""A step, s."""


class Member(Protocol):
    """A node's processes of one round."""

    @property
    def master(self) -> tuple[int, str]:
        """Epoch and incarnation of the newest master that the node's agent has accepted."""

    @property
    def reached(self) -> bool:
        """Whether the newest master's word comes to the node's agent, and soon."""

    @property
    def dying(self) -> bool:
        """Whether SIGKILL is on its way to the processes: it takes some milliseconds."""

    def on_first_step(self) -> None:
        """Every rank of the round has completed a step."""

    def on_boundary(self, arm_id: int, step: int) -> None:
        """The armed step is completed: the ranks of this node save and end."""

    def on_target(self) -> None:
        """The script has come to its end."""

    def on_peers_lost(self) -> None:
        """A collective broke: the processes raise or hang."""


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
    arms: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
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
        """(round, step, time) of what was saved at a boundary."""
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

    def arm(self, found: Round, place: int, arm_id: int, step: int) -> int:
        """The ranks of a node see an arm; the step at which they do."""
        self._settle(found)
        seen = found.done
        if seen < step and place in found.members:
            found.arms[place] = (arm_id, step)
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
        return min(
            found.done + int((self._time.now - found.since) / PACE + 1e-6), self._limit(found)
        )

    def _limit(self, found: Round) -> int:
        armed = min((step for _, step in found.arms.values()), default=self.target)
        return max(found.done, min(self.target, armed))

    def _settle(self, found: Round) -> None:
        if found.since is not None:
            done = self.step(found)
            found.since += (done - found.done) * PACE
            found.done = done
            self.best = max(self.best, done)
            self.saved = max(self.saved, done // SAVE_EVERY * SAVE_EVERY)

    def _go(self, found: Round) -> None:
        """Step if nothing is in the way, and be told of the next thing that happens."""
        able = len(found.members) == found.size and not found.broken and not found.paused
        found.version += 1
        if not able:
            found.since = None
            return
        if found.since is None:
            found.since = self._time.now
        first = found.done + 1 if not found.told else self._limit(found)
        next_step = min(first, self._limit(found))
        when = found.since + max(0, next_step - found.done) * PACE
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
        at = {place: arm for place, arm in found.arms.items() if arm[1] <= found.done}
        if at:
            self.saved = max(self.saved, found.done)
            self.commits.append((found.number, found.done, self._time.now))
            found.since, found.version = None, found.version + 1
            for place, (arm_id, _) in sorted(at.items()):
                if place in found.members:
                    found.members[place].on_boundary(arm_id, found.done)
        elif found.done >= self.target:
            found.since, found.version = None, found.version + 1
            for member in list(found.members.values()):
                member.on_target()
        else:
            self._go(found)
