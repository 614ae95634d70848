"""`python -m bench.scale.plain PORT`: the same work as one writes it in plain kopf.

An index of pods, and one handler for ElasticJobs and for pods, which makes missing workers and
writes the number of ready ones to the status. No master, no certificates, no Services, no events.
The client's limits are those of the operator.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, Final

import kopf
from aiohttp import web

from holdfast_operator.kube.client import MERGE, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError
from holdfast_operator.pods.names import Owner
from holdfast_operator.settings import OperatorSettings
from holdfast_wire import keys

_DEFAULTS: Final = OperatorSettings(namespace="", identity="", image="")
_client = KubeClient(_DEFAULTS.api_rate, _DEFAULTS.api_burst)
_jobs: dict[tuple[str, str], Mapping[str, Any]] = {}
_locks: dict[tuple[str, str], asyncio.Lock] = {}
_ready = asyncio.Event()


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Do as our operator does: no events of kopf's, no peering, pages."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    await _client.open()
    _ready.set()


@kopf.index("", "v1", "pods", labels={keys.LABEL_JOB: kopf.PRESENT})
async def pods_of(
    namespace: str | None,
    labels: Mapping[str, str],
    name: str | None,
    status: kopf.Status,
    **_: Any,
) -> dict[Any, Any]:
    """Return a pod's name and readiness by its job."""
    ready = any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())
    )
    return {(namespace, labels[keys.LABEL_JOB]): (name, ready)}


@kopf.on.event("holdfast.dev", "v1alpha1", "elasticjobs")
async def job_changed(body: kopf.Body, **more: Any) -> None:
    """Reconcile a job."""
    key = (body["metadata"]["namespace"], body["metadata"]["name"])
    _jobs[key] = dict(body)
    await _reconcile(key, more["pods_of"])


@kopf.on.event("", "v1", "pods", labels={keys.LABEL_JOB: kopf.PRESENT})
async def pod_changed(namespace: str | None, labels: Mapping[str, str], **more: Any) -> None:
    """Reconcile a pod's job."""
    key = (str(namespace), labels[keys.LABEL_JOB])
    if key in _jobs:
        await _reconcile(key, more["pods_of"])


async def _reconcile(key: tuple[str, str], pods_of: Mapping[Any, Any]) -> None:
    async with _locks.setdefault(key, asyncio.Lock()):
        job = _jobs[key]
        seen = dict(pods_of.get(key, ()))
        owner = Owner(name=key[1], namespace=key[0], uid=job["metadata"]["uid"])
        for rank in range(job["spec"]["replicas"]):
            name = f"{key[1]}-worker-{rank}-0"
            if name not in seen:
                await _make(owner, name, rank, job["spec"]["worker"]["template"]["spec"])
        ready = sum(seen.values())
        if (job.get("status") or {}).get("readyReplicas") != ready:
            status = {"replicas": len(seen), "readyReplicas": ready}
            path = f"{owner.path}/status"
            _jobs[key] = await _client.call("PATCH", path, {"status": status}, MERGE)


async def _make(owner: Owner, name: str, rank: int, spec: Mapping[str, Any]) -> None:
    metadata = owner.metadata(name)
    metadata["labels"] |= {keys.LABEL_ROLE: "worker", keys.LABEL_INDEX: str(rank)}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(spec)}
    try:
        await _client.call("POST", owner.core("pods"), pod)
    except ApiRefusedError as error:
        if not error.exists:
            raise


async def _serve(port: int) -> None:
    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=200 if _ready.is_set() else 503)

    async def metrics(_: web.Request) -> web.Response:
        import prometheus_client

        return web.Response(body=prometheus_client.generate_latest())

    application = web.Application()
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    where: dict[str, Any] = {"clusterwide": True, "identity": "plain"}
    await kopf.operator(standalone=True, **where)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
