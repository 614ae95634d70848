"""Fence of masters: only the newest one started or connected counts.

Only the ordering rule. A master that stood still while its successor began does not know that it is
outdated. If both were obeyed, the older could delete what the newer needs.
"""

from __future__ import annotations

import dataclasses

from holdfast_wire.messages import Fence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownMaster:
    """Newest known master; without arguments, none."""

    epoch: int = 0
    incarnation: str = ""
    """Incarnation of the master that was heard; empty: no master of this epoch was."""

    def refusal(self, fence: Fence | None) -> str:
        """Return the reason to drop a message; empty: act on it.

        A message without a fence is from a master one minor release older, which sends none here.
        """
        if fence is None or fence.epoch == 0:
            return ""
        if fence.epoch < self.epoch:
            return f"its epoch is {fence.epoch}, there is a master of epoch {self.epoch}"
        other = fence.epoch == self.epoch and fence.incarnation != self.incarnation
        if other and self.incarnation:
            return f"another master has its epoch, {fence.epoch}, and was heard first"
        return ""

    def heard(self, fence: Fence | None) -> KnownMaster:
        """Return the knowledge after a message that was acted on."""
        if fence is None or fence.epoch == 0:
            return self
        return KnownMaster(epoch=fence.epoch, incarnation=fence.incarnation)

    def started(self, epoch: int) -> KnownMaster:
        """Return the knowledge once a master of this epoch was started: older ones are given up."""
        return KnownMaster(epoch=epoch) if epoch > self.epoch else self

    def ended(self) -> KnownMaster:
        """Return the knowledge once the process of this epoch is seen to have ended.

        A master one minor release older that keeps no journal begins again with the same epoch.
        """
        return dataclasses.replace(self, incarnation="")
