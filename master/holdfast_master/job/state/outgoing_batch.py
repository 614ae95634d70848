"""The batch that is being written: records of facts, then messages and other instructions."""

from __future__ import annotations

import dataclasses

from holdfast_master.instructions import (
    Fact,
    Instruction,
    Record,
    RefusalCode,
    Refuse,
    Reply,
    Send,
    SendToOperator,
    UserResponse,
)
from holdfast_master.job.state.apply import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_master.job.state.membership import Node
from holdfast_master.job.state.operator_view import OperatorView
from holdfast_master.job.state.takeover_claims import Claims
from holdfast_master.job.state.timers import JobClock
from holdfast_master.settings import CoreIdentity
from holdfast_wire import messages as wire
from holdfast_wire.messages.agent import SessionResponseMessage
from holdfast_wire.messages.operator import SyncResponseMessage

EPOCH_BITS = 32
"""Bits below the epoch in the number of a command."""
_LONGEST_TEXT = 1_000
"""Characters of an event's text: what is quoted in one was cut before, this is the last border."""


@dataclasses.dataclass(slots=True, eq=False)
class OutgoingBatch:
    """Instructions of one input, in the order in which the shell carries them out."""

    identity: CoreIdentity
    state: JobState
    clock: JobClock
    operator: OperatorView
    claims: Claims
    _records: list[Record] = dataclasses.field(default_factory=list)
    _first: list[Instruction] = dataclasses.field(default_factory=list)
    _rest: list[Instruction] = dataclasses.field(default_factory=list)
    _strikes: list[wire.NodeStruck] = dataclasses.field(default_factory=list)

    # ---------------------------------------------------------------------------------- writing

    def record(self, fact: Fact, *, durable: bool = False) -> None:
        """Change the durable state, and have the journal say so."""
        clock = self.clock
        number = self.state.sequence + 1
        record = Record(fact, durable, number, clock.moment.unix, clock.job_seconds)
        apply(self.state, record.journal())
        self._records.append(record)

    def event(
        self,
        reason: str,
        text: str,
        severity: wire.EventSeverity = wire.EventSeverity.NORMAL,
        *,
        node: int | None = None,
        incident: str = "",
    ) -> None:
        """Write an event for people."""
        event = wire.JobEvent(
            sequence=max(self.state.event_sequence, self.claims.event_floor) + 1,
            unix_time=self.clock.moment.unix,
            severity=severity,
            reason=reason,
            text=text[:_LONGEST_TEXT],
            round=self.state.round,
            node="" if node is None else str(node),
            incident_id=incident,
        )
        self.record(wire.EventRecorded(event=event))

    def warn(self, reason: str, text: str, *, node: int | None = None, incident: str = "") -> None:
        """Write an event about something wrong."""
        self.event(reason, text, wire.EventSeverity.WARNING, node=node, incident=incident)

    def command(self, kind: str, rank: int, *, durable: bool = False) -> int:
        """A new command id; it is written down so that it is never used again.

        It begins with the epoch: a master that knows nothing of another, before it or at the same
        time, gives out none of its numbers, which agents, ranks and operators have seen.
        """
        first = (self.identity.epoch << EPOCH_BITS) + 1
        number = max(first, self.state.next_command_id)
        issued = wire.CommandIssued(command_id=number, node_rank=rank, kind=kind)
        self.record(issued, durable=durable)
        return number

    # ---------------------------------------------------------------------------------- sending

    def fence(self, round_number: int = 0) -> wire.Fence:
        """Return this master's fence."""
        return wire.Fence(
            epoch=self.identity.epoch,
            incarnation=self.identity.incarnation,
            group=0,
            round=round_number,
        )

    def send(self, node: Node, message: SessionResponseMessage, round_number: int = 0) -> None:
        """Send to a node's agent, if it has a stream."""
        if node.session is not None:
            self.send_session(node.session, message, round_number)

    def send_first(self, node: Node, message: SessionResponseMessage) -> None:
        """Send to a node's agent before the rest of this batch, in the order of the calls."""
        if node.session is not None:
            response = wire.SessionResponse(fence=self.fence(), message=message)
            self._first.append(Send(node.session, response))

    def send_session(
        self, session: int, message: SessionResponseMessage, round_number: int = 0
    ) -> None:
        """Send on a stream."""
        response = wire.SessionResponse(fence=self.fence(round_number), message=message)
        self._rest.append(Send(session, response))

    def stop_round(self, node: Node, round_number: int, reason: str, grace: float = 0.0) -> None:
        """Have an agent end the processes of a round; grace: SIGTERM to SIGKILL, s."""
        if node.session is not None:
            number = self.command("stop", node.rank)
            message = wire.StopRound(command_id=number, grace_seconds=grace, reason=reason)
            self.send(node, message, round_number)

    def leave(self, node: Node, outcome: wire.LeaveOutcome, reason: str, grace: float) -> None:
        """Have an agent end its processes and itself."""
        if node.session is not None:
            number = self.command("leave", node.rank)
            self.send(
                node,
                wire.Leave(command_id=number, grace_seconds=grace, reason=reason, outcome=outcome),
            )

    def send_operator(self, message: SyncResponseMessage) -> None:
        """Send to the operator, if one is connected."""
        if self.operator.connected:
            response = wire.SyncResponse(fence=self.fence(), message=message)
            self._rest.append(SendToOperator(response))

    def strike(self, fact: wire.NodeStruck) -> None:
        """Write a strike down, and tell the operator: those of one batch in one message.

        A fault of a switch strikes thousands of nodes at once. The message goes before others, as
        nobody may listen after the one that ends the job.
        """
        self.record(fact)
        self._strikes.append(fact)

    def reply(self, request_id: int, response: UserResponse) -> None:
        """Answer a user's request."""
        self.put(Reply(request_id, response))

    def refuse(
        self,
        request_id: int,
        reason: str,
        text: str,
        code: RefusalCode = RefusalCode.FAILED_PRECONDITION,
    ) -> None:
        """Answer a user's request with an error."""
        self.put(Refuse(request_id, code, reason, text))

    def put(self, instruction: Instruction) -> None:
        """Add any other instruction."""
        self._rest.append(instruction)

    def finish(self) -> list[Instruction]:
        """The batch: records first, of which each but the last says that more follow.

        A journal that is torn between them must not be believed half: a node that is gone, without
        the world that ended with it, is a state that no decision ever left behind.
        """
        if not (self._records or self._first or self._rest):
            return []  # as after nearly every heartbeat
        records = [dataclasses.replace(record, more=True) for record in self._records[:-1]]
        batch = [*records, *self._records[-1:], *self._first, *self._report(), *self._rest]
        self._records, self._first, self._rest, self._strikes = [], [], [], []
        return batch

    def _report(self) -> list[Instruction]:
        if not self._strikes or not self.operator.connected:
            return []
        message = wire.StrikesReported(strikes=tuple(self._strikes))
        return [SendToOperator(wire.SyncResponse(fence=self.fence(), message=message))]
