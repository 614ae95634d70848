"""Training that a test asks about rounds that are over, and about steps that were done again."""

from __future__ import annotations

from simulation.training import Member, Round, Training


class SteeredTraining(Training):
    """Remembers every round."""

    rounds: dict[int, Round]
    redone = 0
    """Steps that were done before a round restored what was saved."""

    def join(self, number: int, world: str, size: int, place: int, member: Member) -> Round:
        """A node's processes of a round begin."""
        self.__dict__.setdefault("rounds", {})
        found = super().join(number, world, size, place, member)
        if self.rounds.get(number) is not found:
            self.rounds[number] = found
            self.redone += max(0, self.best - found.base)
        return found
