"""Inputs of the core as messages of the wire, and back: for the recording and for the replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast_master import inputs
from holdfast_wire import codec
from holdfast_wire import messages as wire
from holdfast_wire.reasons import EventReason


class RecordedInputError(ValueError):
    """A recorded input that is none."""


def to_message(event: inputs.Input) -> Any:
    """Return the content of `InputRecorded.input` for this input."""
    return _TO[type(event)](event)


def from_message(recorded: wire.InputRecorded) -> inputs.Input:
    """The input that was recorded.

    Raises:
        RecordedInputError: it is of a kind that this release does not know.
    """
    kind = type(recorded.input)
    made = _FROM[kind](recorded.input) if recorded.input is not None else None
    if made is None:
        raise RecordedInputError("an input of a newer release; replay it with that release")
    return made


def _said(event: inputs.Connected | inputs.Received) -> wire.AgentSaid:
    message = event.hello if isinstance(event, inputs.Connected) else event.message
    raw = event.raw or codec.encode(wire.SessionRequest(fence=event.fence, message=message))
    return wire.AgentSaid(session=event.session, request=raw)


_TO: dict[type, Callable[[Any], Any]] = {
    inputs.Connected: _said,
    inputs.Received: _said,
    inputs.Disconnected: lambda event: wire.AgentDisconnected(
        session=event.session, cause=event.cause.value
    ),
    inputs.OperatorConnected: lambda _: wire.OperatorStream(connected=True),
    inputs.OperatorDisconnected: lambda _: wire.OperatorStream(connected=False),
    inputs.OperatorMessage: lambda event: wire.SyncRequest(message=event.message),
    inputs.UserCall: lambda event: wire.UserAsked(
        request_id=event.request_id,
        who=event.who,
        method=type(event.request).__name__.removesuffix("Request"),
        request=codec.encode(event.request),
    ),
    inputs.JournalNoted: lambda event: wire.ShellNoted(reason=event.reason, text=event.text),
    inputs.PeerRefused: lambda event: wire.ShellNoted(
        reason=EventReason.PEER_REFUSED, text=event.text
    ),
    inputs.Ticked: lambda _: wire.DeadlineCame(),
    inputs.Stalled: lambda event: wire.MasterStalled(seconds=event.seconds),
}


def _agent(said: wire.AgentSaid) -> inputs.Input | None:
    request = codec.decode(wire.SessionRequest, said.request)
    if isinstance(request.message, wire.Hello):
        return inputs.Connected(said.session, request.message, request.fence, said.request)
    if request.message is None:
        return None
    return inputs.Received(said.session, request.fence, request.message, said.request)


def _asked(asked: wire.UserAsked) -> inputs.Input | None:
    known = wire.METHODS.get(f"/holdfast.v1.JobService/{asked.method}")
    if known is None:
        return None
    request = codec.decode(getattr(wire, known[0]), asked.request)
    return inputs.UserCall(asked.request_id, request, asked.who)


def _noted(note: wire.ShellNoted) -> inputs.Input:
    if note.reason == EventReason.PEER_REFUSED:
        return inputs.PeerRefused(note.text)
    return inputs.JournalNoted(note.reason, note.text)


_FROM: dict[type, Callable[[Any], inputs.Input | None]] = {
    wire.AgentSaid: _agent,
    wire.AgentDisconnected: lambda gone: inputs.Disconnected(
        gone.session, inputs.DisconnectCause(gone.cause)
    ),
    wire.OperatorStream: lambda it: (
        inputs.OperatorConnected() if it.connected else inputs.OperatorDisconnected()
    ),
    wire.SyncRequest: lambda it: None if it.message is None else inputs.OperatorMessage(it.message),
    wire.UserAsked: _asked,
    wire.ShellNoted: _noted,
    wire.DeadlineCame: lambda _: inputs.Ticked(),
    wire.MasterStalled: lambda stalled: inputs.Stalled(stalled.seconds),
}
