"""Records that must be on the disk before a master's words go out.

Belongs here: the table of words and the records that they follow from, and which of those are not
synced yet. Does not belong here: the disk itself (`disk`).

Words that are not in the table may go first. A successor that lacks the record of a ReplaceDecision
or a ScaleDecision asks again, under a number of its own, and the operator compares pods; a grant to
commit has a name that no other master gives out; a barrier is told by the ranks that have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast_master.instructions import Record
from holdfast_master.job.state.job_state import DRAINING, RELEASED, RENEW, REPLACED
from holdfast_wire import messages as wire
from holdfast_wire.reasons import Cause
from simulation.oracle.invariants import require

Key = tuple[type, str]
_KINDS = ("mark", "kind", "cause")
"""Fields that tell records of one type apart."""

_STOP, _ENDED = (wire.StopRequested, ""), (wire.WorldEnded, "")
_RESTART = (wire.Incident, Cause.RESTART_ASKED)
"""Another one's incident may follow: a node's own loss is no part of what was granted."""
_DRAINING, _RELEASED = (wire.NodeMarked, DRAINING), (wire.NodeMarked, RELEASED)
_ROSTER = ((wire.OuterRoster, ""),)
NEEDED: Mapping[type, tuple[Key, ...]] = {
    wire.WorldAssignment: ((wire.WorldDecided, ""),),
    wire.StopRound: (_ENDED,),
    wire.Leave: (_RELEASED, (wire.NodeMarked, REPLACED), _STOP),
    wire.CommitAnnounced: ((wire.CheckpointCommitted, ""),),
    wire.SetSchedule: ((wire.ScheduleConfirmed, ""),),
    wire.ReleaseDecision: (_RELEASED,),
    wire.ExcludeDecision: ((wire.NodeExcluded, ""),),
    wire.FinishDecision: (_STOP,),
    wire.RestartWorkerResponse: (_ENDED, _RESTART, _DRAINING, (wire.CommandIssued, RENEW)),
    wire.DrainNodeResponse: (_DRAINING,),
    wire.StopJobResponse: (_STOP,),
    wire.ScaleResponse: ((wire.SpecAccepted, ""),),
}
"""What a master says, to the records that a successor must have once that was heard."""


class Unsynced:
    """The records of one master that a power cut would take."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()

    def written(self, records: Sequence[Record], *, safe: bool) -> None:
        """Records are written. `safe`: they and all before them are on the disk, or cannot be."""
        if safe:
            self._keys.clear()
            return
        for record in records:
            fact = record.fact
            kind = next(filter(None, (getattr(fact, name, "") for name in _KINDS)), "")
            self._keys.add((type(fact), kind if isinstance(kind, str) else ""))

    def said(self, message: object) -> None:
        """A message, an answer or a decision goes out."""
        needed = NEEDED.get(type(message), ())
        if (
            isinstance(message, wire.WorldAssignment)
            and message.mode is wire.AssignmentMode.RECONFIGURE
        ):
            needed = _ROSTER  # the next world may be on its way to the disk
        early = self._keys.intersection(needed)
        text = f"{type(message).__name__} went out before {sorted(map(str, early))} was durable"
        require(not early, "effect_after_record", text)
