"""A recovery is one trace with its phases."""

from __future__ import annotations

import socket
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast_master.instructions import Record
from holdfast_master.metrics.spans import RecoverySpans
from holdfast_wire.messages import Incident

_CLOSED = Incident(
    id="i-1",
    cause="WorkerCrashed",
    culprit_rank="3",
    opened_unix=1000.0,
    detection_seconds=0.5,
    decided_seconds=0.25,
    respawned_seconds=2.0,
    first_step_seconds=3.0,
)


def _sent(*incidents: Incident) -> list[tuple[str, float, float]]:
    """Return name, start and end of each span that was sent, in order; a parent comes last."""
    kept = InMemorySpanExporter()
    spans = RecoverySpans(("team", "gpt"), kept)
    for incident in incidents:
        spans.record([Record(incident, durable=True, sequence=1, unix=0.0, job_seconds=0.0)])
    spans.close()
    found = kept.get_finished_spans()
    roots = {one.context.span_id for one in found if one.parent is None}
    assert {one.parent.span_id for one in found if one.parent is not None} <= roots
    return [(one.name, (one.start_time or 0) / 1e9, (one.end_time or 0) / 1e9) for one in found]


def test_a_closed_incident_is_a_span_with_its_phases() -> None:
    """The whole begins at the fault and ends with the first step."""
    assert _sent(_CLOSED) == [
        ("detect", 999.5, 1000.0),
        ("decide", 1000.0, 1000.25),
        ("respawn", 1000.25, 1002.0),
        ("restore", 1002.0, 1003.0),
        ("recovery", 999.5, 1003.0),
    ]


def test_an_incident_is_sent_once_and_only_when_it_is_closed() -> None:
    """The journal has an incident again and again while it is open."""
    opened = Incident(id="i-1", open=True, opened_unix=1000.0, first_step_seconds=1.0)
    assert len(_sent(opened, _CLOSED, _CLOSED)) == 5


def test_what_interrupted_nothing_is_no_recovery() -> None:
    """A hang that is only reported has no phases."""
    assert _sent(Incident(id="i-2", reported_only=True, first_step_seconds=9.0)) == []


def test_a_collector_that_does_not_answer_delays_a_master_s_end_by_two_seconds() -> None:
    """The SDK alone would wait for it for ten, and its successor for the master."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        where = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/traces"
        spans = RecoverySpans(("team", "gpt"), OTLPSpanExporter(endpoint=where))
        spans.record([Record(_CLOSED, durable=True, sequence=1, unix=0.0, job_seconds=0.0)])
        began = time.monotonic()
        spans.close()
        took = time.monotonic() - began
        deaf.settimeout(0.0)
        deaf.accept()[0].close()  # it was asked
    assert 1.9 < took < 8.0
