"""One OpenTelemetry trace a recovery: a span from the fault to the first step, its phases inside.

Off unless OTEL_TRACES_EXPORTER asks for it. Spans are made from closed incidents, and a thread of
the SDK's sends them: nothing here waits for a collector.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Tracer, set_span_in_context

from holdfast_master.instructions import Record
from holdfast_master.metrics.families import Labels
from holdfast_wire import messages as wire

_NANOS: Final = 1e9
_CLOSE_SECONDS: Final = 2.0
"""Longest wait for the last spans at the master's end, s."""


class RecoverySpans:
    """The recoveries of one job as spans."""

    def __init__(self, own: Labels, exporter: SpanExporter) -> None:
        """Send spans to the exporter."""
        namespace, job = own
        resource = Resource.create(
            {"service.name": "holdfast", "service.namespace": namespace, "holdfast.job": job}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("holdfast.master")
        self._sent: set[str] = set()

    def record(self, records: Sequence[Record]) -> None:
        """Send a span for each incident that a batch of records closes."""
        for record in records:
            fact = record.fact
            if not isinstance(fact, wire.Incident) or fact.open or fact.id in self._sent:
                continue
            self._sent.add(fact.id)
            if not fact.reported_only and fact.first_step_seconds > 0:
                _send(self._tracer, fact)

    def close(self) -> None:
        """Send what is left; blocks for up to two seconds."""
        # The SDK ignores the deadline of a flush, and waits 30 s for a collector that is away.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)


def make_exporter(kind: str) -> SpanExporter:
    """Return the exporter that OTEL_TRACES_EXPORTER names: otlp or console.

    OTLP goes over HTTP to where OTEL_EXPORTER_OTLP_ENDPOINT says.
    """
    if kind == "console":
        return ConsoleSpanExporter()
    return OTLPSpanExporter()


def _send(tracer: Tracer, incident: wire.Incident) -> None:
    began = incident.opened_unix - incident.detection_seconds
    whole = tracer.start_span(
        "recovery",
        start_time=_nanos(began),
        attributes={
            "holdfast.incident": incident.id,
            "holdfast.cause": incident.cause,
            "holdfast.text": incident.text,
            "holdfast.node_rank": incident.culprit_node,
            "holdfast.rank": incident.culprit_rank,
            "holdfast.round": incident.to_round,
            "holdfast.steps_redone": incident.steps_redone,
        },
    )
    inside = set_span_in_context(whole)
    for name, start, end in _phases(incident, began):
        tracer.start_span(name, inside, start_time=_nanos(start)).end(_nanos(end))
    whole.end(_nanos(incident.opened_unix + incident.first_step_seconds))


def _phases(incident: wire.Incident, began: float) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end of each phase that was seen; Unix time, s."""
    start, opened = began, incident.opened_unix
    for name, end in (
        ("detect", opened),
        ("decide", opened + incident.decided_seconds),
        ("respawn", opened + incident.respawned_seconds),
        ("restore", opened + incident.first_step_seconds),
    ):
        if end > start:
            yield name, start, end
            start = end


def _nanos(unix: float) -> int:
    return int(unix * _NANOS)
