"""HTTP endpoints for kubelet and Prometheus: /healthz, /readyz, /metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import prometheus_client as prometheus
from aiohttp import web

LOOKS: Final = prometheus.Counter(
    "holdfast_operator_looks_total", "Looks at jobs, by outcome.", ["outcome"]
)
LOOK_SECONDS: Final = prometheus.Histogram(
    "holdfast_operator_look_seconds", "How long one look at a job takes."
)
QUEUE_DEPTH: Final = prometheus.Gauge("holdfast_operator_queue_depth", "Jobs that wait for a look.")


async def serve_probes(
    port: int, healthy: Callable[[], bool], ready: Callable[[], bool]
) -> web.AppRunner:
    """Serve the endpoints on every address; the caller cleans the runner up."""

    async def health(_: web.Request) -> web.Response:
        return _answer(good=healthy())

    async def readiness(_: web.Request) -> web.Response:
        return _answer(good=ready())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=prometheus.generate_latest(), content_type="text/plain")

    application = web.Application()
    application.router.add_get("/healthz", health)
    application.router.add_get("/readyz", readiness)
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


def _answer(*, good: bool) -> web.Response:
    return web.Response(status=200 if good else 503, text="ok\n" if good else "no\n")
