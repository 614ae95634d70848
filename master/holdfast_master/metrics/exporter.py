"""Serves a job's metrics: counts facts as they are written, reads figures at each scrape.

A scrape is served by a thread of `http_server`; it takes the figures on the event loop, whose
core it must not touch, and waits for them with a deadline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast_master.instructions import Record
from holdfast_master.job.requests.figures import JobFigures
from holdfast_master.metrics.families import Labels, families
from holdfast_master.metrics.http_server import MetricsServer
from holdfast_wire import messages as wire
from holdfast_wire.reasons import Cause

SCRAPE_SECONDS: Final = 5.0
"""A scrape waits this long for the event loop, s: half of Prometheus' own limit, so that the target
is down with a reason rather than by a deadline."""
CAUSES: Final = tuple(text for name, text in vars(Cause).items() if name.isupper())
"""Every cause: its counter begins at 0, since Prometheus sees no increase from nothing to 1."""
PHASES: Final = ("detected", "decided", "respawned", "restored")
"""Parts of a recovery."""
BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800)
"""Bounds of the parts of a recovery, s: from a restart in place to a wait for a new node."""


@dataclasses.dataclass(slots=True)
class HighWater:
    """Goodput as counters: since this master began, and never going back.

    A roll-back takes seconds out of the productive class. Prometheus takes a counter that falls for
    one that began anew: it stands still instead, until new work has made up for what was lost.
    """

    began: dict[wire.GoodputClass, int] | None = None
    shown: dict[wire.GoodputClass, int] = dataclasses.field(default_factory=dict)

    def take(self, totals: Iterable[tuple[wire.GoodputClass, int]]) -> dict[wire.GoodputClass, int]:
        """Take the microseconds of the whole job by class; what the counters show now."""
        now = dict(totals)
        if self.began is None:
            self.began = now
        for kind, spent in now.items():
            since = spent - self.began.get(kind, 0)
            self.shown[kind] = max(self.shown.get(kind, 0), since)
        return dict(self.shown)


class _Figures(Collector):
    """The families that are made anew at each scrape."""

    def __init__(self, own: Labels, figures: Callable[[], JobFigures]) -> None:
        self._own, self._figures = own, figures
        self._goodput = HighWater()
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Every family of one moment."""
        with self._lock:
            now = self._figures()
            goodput = self._goodput.take(now.goodput_micros.items())
        return families(self._own, now, goodput)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known once there are figures."""
        return ()


class MetricsExporter:
    """The metrics of one master process."""

    def __init__(self, own: Labels, figures: Callable[[], JobFigures]) -> None:
        """Prepare; nothing is served yet.

        figures: The job's figures now; called on the event loop.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which no query needs
        self.registry = CollectorRegistry()
        self._own, self._figures = own, figures
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: MetricsServer | None = None
        self._closed: set[str] = set()
        self._incidents = Counter(
            "holdfast_job_incidents",
            "Incidents that were closed since this master began, by cause.",
            ("namespace", "job", "cause"),
            registry=self.registry,
        )
        for cause in CAUSES:
            self._incidents.labels(*own, cause)
        self._recovery = Histogram(
            "holdfast_job_recovery_seconds",
            "Seconds of a recovery: detected from the fault on, the others from its detection on "
            "until the decision, new processes, the first step.",
            ("namespace", "job", "phase"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        for phase in PHASES:
            self._recovery.labels(*own, phase)
        self.registry.register(_Figures(own, self._on_loop))

    def record(self, records: Sequence[Record]) -> None:
        """Count the facts of a batch that is written."""
        for record in records:
            fact = record.fact
            if isinstance(fact, wire.Incident) and not fact.open and fact.id not in self._closed:
                self._closed.add(fact.id)
                self._count(fact)

    def _count(self, incident: wire.Incident) -> None:
        self._incidents.labels(*self._own, incident.cause).inc()
        if incident.reported_only:
            return
        for phase, seconds in (
            ("detected", incident.detection_seconds),
            ("decided", incident.decided_seconds),
            ("respawned", incident.respawned_seconds),
            ("restored", incident.first_step_seconds),
        ):
            if seconds > 0:
                self._recovery.labels(*self._own, phase).observe(seconds)

    def start(self, host: str, port: int) -> int:
        """Serve on the running event loop's behalf; the port.

        Raises:
            OSError: the port cannot be had.
        """
        self._loop = asyncio.get_running_loop()
        self._server = MetricsServer(host.strip("[]"), port, self.registry)
        return self._server.server_port

    def close(self) -> None:
        """Stop serving; blocks for up to half a second."""
        if self._server is not None:
            self._server.close()

    def _on_loop(self) -> JobFigures:
        """The figures, made on the event loop; a thread of a scrape waits for them.

        Raises:
            TimeoutError: the event loop did not get to it.
        """
        loop = self._loop
        if loop is None:
            return self._figures()
        return asyncio.run_coroutine_threadsafe(self._made(), loop).result(SCRAPE_SECONDS)

    async def _made(self) -> JobFigures:
        return self._figures()
