"""What the loop needs of the parts around it: a core, a lookout, a journal.

Belongs here: these protocols. Does not belong here: the parts, and what the loop does with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction


class Decider(Protocol):
    """What the loop needs of a core."""

    def open(self, now: Moment) -> list[Instruction]:
        """Return the first batch."""

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """Return the batch that one input leads to."""

    def next_deadline(self) -> float | None:
        """Return when a Ticked is due."""


class Watch(Protocol):
    """What the loop needs of a lookout for newer masters."""

    @property
    def newer(self) -> str:
        """Who has begun; empty: nobody."""

    async def run(self) -> None:
        """Look again and again."""

    async def look(self) -> None:
        """Look now."""


class Recorder(Protocol):
    """What the loop needs of a journal."""

    @property
    def trouble(self) -> str:
        """Why records are not on disk."""

    def commit(self, records: Sequence[bytes], *, durable: bool) -> None:
        """Append records; blocks."""
