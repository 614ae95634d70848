"""Instructions of the core to its shell, as frozen values.

A batch is carried out in order, after its records: the shell appends every Record of the batch in
order, calls fsync once if any of them is durable, and only then performs the rest.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from holdfast_wire.messages import IncidentEvidence, JournalRecord, SessionResponse, SyncResponse
from holdfast_wire.messages.job import JobServiceResponse
from holdfast_wire.messages.journal import JournalRecordFact

JOURNAL_FORMAT: Final = 4
"""Format of the facts in the journal; a release reads no other."""

Fact = JournalRecordFact
"""A content of a journal record."""

UserResponse = JobServiceResponse
"""Answers to `inputs.UserRequest`, type by type."""


class RefusalCode(enum.Enum):
    """The gRPC status of a Refuse or CloseSession; the names are gRPC's own."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Append a fact to the journal. The core has applied it to its own state already."""

    fact: Fact
    durable: bool
    """True: the rest of the batch must not happen before this is on disk."""
    sequence: int
    unix: float
    job_seconds: float
    more: bool = False
    """The next record is of the same decision."""

    def journal(self) -> JournalRecord:
        """The record as it is written."""
        return JournalRecord(
            sequence=self.sequence,
            unix_time=self.unix,
            job_seconds=self.job_seconds,
            fact=self.fact,
            more=self.more,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """Send to an agent. Of a session that has ended meanwhile: drop it."""

    session: int
    response: SessionResponse


@dataclasses.dataclass(frozen=True, slots=True)
class CloseSession:
    """End an agent's stream with a status; queued Sends go out first. No Disconnected is needed."""

    session: int
    code: RefusalCode
    reason: str
    """For ErrorInfo, UPPER_SNAKE."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class SendToOperator:
    """Send to the operator.

    Without an operator: drop it; the core repeats what is still wanted when one connects.
    """

    response: SyncResponse


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """Answer a user's request."""

    request_id: int
    response: UserResponse


@dataclasses.dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a user's request with an error."""

    request_id: int
    code: RefusalCode
    reason: str
    """For ErrorInfo, UPPER_SNAKE."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Keep the evidence of an incident for people; what was kept under its id is replaced.

    It may be lost, and nothing is decided from it.
    """

    evidence: IncidentEvidence


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """The job has ended and every agent has been told.

    The shell may exit once its queues are empty and the operator has read the FinishDecision.
    """

    succeeded: bool
    reason: str
    """CamelCase, from `holdfast_wire.reasons`."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepDown:
    """A newer master exists: stop acting at once and exit without touching agents or operator."""

    text: str


Instruction = (
    Record
    | Send
    | CloseSession
    | SendToOperator
    | Reply
    | Refuse
    | KeepEvidence
    | Finished
    | StepDown
)
"""A result of `Core.handle`."""
