"""The pure core of the job master: inputs in, instructions out.

Belongs here: the one entry that dispatches inputs, the timers, and the views that the shell serves.
Does not belong here: decisions (see `decide`), clocks, I/O, logging, randomness.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast_master.inputs import Input, Moment
from holdfast_master.instructions import Instruction
from holdfast_master.settings import CoreIdentity, CoreSettings
from holdfast_wire.messages import (
    GetGoodputResponse,
    JobEvent,
    JobStatus,
    JournalRecord,
    NodeInfo,
    StateDigest,
)


class Core:
    """The job master's decisions. Deterministic: the same inputs give the same instructions.

    The shell's order: `Core(...)`, or `Core.restore(...)` where a journal exists; then once
    `open(now)`; then `handle` for each input and a `Ticked` when `next_deadline` has come. After
    each call it carries out the returned batch as `instructions` says.
    """

    def __init__(self, identity: CoreIdentity, settings: CoreSettings) -> None:
        raise NotImplementedError

    @classmethod
    def restore(
        cls,
        records: Iterable[JournalRecord],
        identity: CoreIdentity,
        settings: CoreSettings,
    ) -> Core:
        """A core whose state is the fold of the records of all earlier segments."""
        raise NotImplementedError

    def open(self, now: Moment) -> list[Instruction]:
        """The first batch: opens the journal's segment of this epoch, starts the clocks."""
        raise NotImplementedError

    def handle(self, event: Input, now: Moment) -> list[Instruction]:
        """Take one input; `now.mono` never goes back. The returned batch is carried out whole."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        """Monotonic time at which a Ticked is due; None: nothing is waited for."""
        raise NotImplementedError

    def status(self, now: Moment) -> JobStatus:
        """The whole small truth, for JobService and the operator."""
        raise NotImplementedError

    def nodes(self, now: Moment) -> tuple[NodeInfo, ...]:
        """Every known or expected node, in node rank order."""
        raise NotImplementedError

    def events_after(self, sequence: int, limit: int) -> tuple[JobEvent, ...]:
        """Events after this sequence, oldest first, at most `limit`."""
        raise NotImplementedError

    def newest_event(self) -> int:
        """Sequence of the newest event; 0: none yet."""
        raise NotImplementedError

    def oldest_event(self) -> int:
        """Sequence of the oldest event that is still kept; 0: none yet."""
        raise NotImplementedError

    def goodput(self, now: Moment) -> GetGoodputResponse:
        """Node-seconds by class, whole and by node, and every incident with its cost."""
        raise NotImplementedError

    def digest(self, now: Moment) -> StateDigest:
        """What a master without a journal would need."""
        raise NotImplementedError

    def validate(self) -> None:
        """Check every invariant; raises AssertionError with the story of what came before."""
        raise NotImplementedError
