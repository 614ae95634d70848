"""Protocols that the loop needs of the parts around it: core, successor watch, journal.

Belongs here: these protocols. Does not belong here: the parts, and the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction


class Decider(Protocol):
    """The core, as the loop needs it."""

    def open(self, now: Moment) -> list[Instruction]:
        """Return the first batch."""

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """Return the batch that one input leads to."""

    def next_deadline(self) -> float | None:
        """Return when a Ticked is due."""

    def reasons(self) -> tuple[str, ...]:
        """Return why the newest call looked at the decisions again; empty: it did not."""


class SuccessorWatch(Protocol):
    """The watch for newer masters, as the loop needs it."""

    @property
    def newer(self) -> str:
        """Return the newer master; empty: there is none."""

    async def run(self) -> None:
        """Look again and again."""

    async def look(self) -> None:
        """Look now."""


class Recorder(Protocol):
    """The journal, as the loop needs it."""

    @property
    def trouble(self) -> str:
        """Return why records are not on disk."""

    def commit(self, records: Sequence[bytes], *, durable: bool) -> None:
        """Append records; blocks."""
