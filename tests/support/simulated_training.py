"""What the training processes of a simulated job do together: step, block, raise, save, end.

Physics only: a round steps exactly while every member's processes live, and restores what was
saved last.
"""

from __future__ import annotations

import dataclasses

PACE = 0.1
"""A step, s."""
SAVE_EVERY = 10
"""Steps between the script's own checkpoints."""


@dataclasses.dataclass
class Round:
    """The processes of one round on all its nodes."""

    number: int
    size: int
    """Nodes."""
    world: str
    """Hash of its world: a master without memory may give a number twice."""
    base: int
    """Step that was restored."""
    alive: dict[int, str] = dataclasses.field(default_factory=dict)
    """Node rank to agent id of the nodes whose processes run."""
    stepping_since: float | None = None
    stopped_at: int | None = None
    """Step at which it stopped for good."""
    arm: int | None = None


class Training:
    """All rounds of a job, and the checkpoint."""

    def __init__(self, target: int) -> None:
        self.target = target
        """Steps after which the script ends by itself."""
        self.saved = 0
        self.best = 0
        self.rounds: dict[int, Round] = {}
        self.redone = 0

    def join(self, number: int, size: int, world: str, node: tuple[int, str], now: float) -> Round:
        """A node's processes of a round begin; the node is its rank and its agent's id."""
        for older in list(self.rounds.values()):
            if older.number < number:
                self._settle(older, now)
        found = self.rounds.get(number)
        if found is None or found.world != world:
            if found is not None:
                self._settle(found, now)
            found = self.rounds[number] = Round(number, size, world, self.saved)
            self.redone += max(0, self.best - self.saved)
        found.alive[node[0]] = node[1]
        if len(found.alive) == found.size and found.stopped_at is None:
            found.base = self.saved
            found.stepping_since = now
        return found

    def leave(self, number: int, rank: int, agent_id: str, now: float) -> None:
        """A node's processes of a round end: the others block."""
        found = self.rounds.get(number)
        if found is None or found.alive.get(rank) != agent_id:
            return
        self._settle(found, now)
        del found.alive[rank]

    def step(self, number: int, now: float) -> int:
        """Completed steps of the round."""
        found = self.rounds.get(number)
        if found is None:
            return 0
        if found.stopped_at is not None:
            return found.stopped_at
        if found.stepping_since is None:
            return found.base
        done = found.base + int((now - found.stepping_since) / PACE + 1e-9)
        limit = self.target if found.arm is None else min(self.target, max(found.arm, found.base))
        return min(done, limit)

    def _settle(self, found: Round, now: float) -> None:
        """The round makes no further step."""
        if found.stopped_at is not None:
            return
        found.stopped_at = self.step(found.number, now)
        self.best = max(self.best, found.stopped_at)
        self.saved = max(self.saved, found.stopped_at // SAVE_EVERY * SAVE_EVERY)
        if found.arm is not None and found.stopped_at == found.arm:
            self.saved = max(self.saved, found.arm)

    def has_stepped(self, number: int, now: float) -> bool:
        """Whether the round has completed its first step."""
        found = self.rounds.get(number)
        return found is not None and self.step(number, now) > found.base

    def stepping(self, now: float) -> list[int]:
        """Rounds that are able to step now."""
        return [
            found.number
            for found in self.rounds.values()
            if found.stepping_since is not None
            and found.stopped_at is None
            and len(found.alive) == found.size
        ]
