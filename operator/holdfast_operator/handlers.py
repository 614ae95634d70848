"""kopf as a shell: it watches ElasticJobs and passes every changed one on.

No handler of kopf's does work: a failing one would be logged and forgotten, and its finalizers and
annotations are not wanted on our objects.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from holdfast_operator.kube.client import without_managers
from holdfast_wire import keys

Seen = Callable[[tuple[str, str], Mapping[str, Any], bool], None]
"""Called with a job's namespace and name, its object, and True if the object is gone."""


class _NoDiffs(kopf.DiffBaseStorage):
    """Nothing to compare an object with: kopf would copy each object it sees, for nobody."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


async def watch_jobs(
    namespace: str, seen: Seen, began: asyncio.Event, listed: asyncio.Event
) -> None:
    """Watch until cancelled; return or raise only when kopf has ended, which is an error.

    Args:
        namespace: Namespace to watch; empty: all.
        seen: Called with every change. Events of two objects with the same name may come in any
            order. Deletions during a new list are not delivered.
        began: Set once kopf has started, which replaces the signal handlers of this process.
        listed: Set once all jobs were listed, and a watch is open.
    """
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.watching.chunk_size = 100  # 60 kB each, once they are parsed
        # Else kopf kills this process 10 min after its own end, which may be that of one namespace.
        settings.process.ultimate_exiting_timeout = None
        settings.persistence.diffbase_storage = _NoDiffs()
        # Unused, but two operators with one name would remove each other's.
        settings.persistence.finalizer = "holdfast.dev/kopf-unused"

    async def event(body: kopf.Body, **arguments: Any) -> None:
        metadata = body["metadata"]
        gone = arguments["type"] == "DELETED"
        seen((metadata["namespace"], metadata["name"]), without_managers(dict(body)), gone)

    group, _, version = keys.API_VERSION.partition("/")
    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(functools.partial(_login, listed))
    kopf.on.event(group, version, "elasticjobs", registry=registry)(event)
    where: dict[str, Any] = {"namespaces": [namespace]} if namespace else {"clusterwide": True}
    # Unused without peering, but kopf's own default asks for the name of a user, which a container
    # does not have.
    where["identity"] = "holdfast-operator"
    await _serve(
        await kopf.spawn_tasks(registry=registry, standalone=True, ready_flag=began, **where)
    )


async def _serve(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until a task of kopf's ends, or until cancelled; then end them, and no others.

    `kopf.operator` would cancel every task of the loop that was made since it began: the links of
    all jobs, and what looks after the other namespaces.
    """
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in ended:
        if not task.cancelled():
            task.result()


async def _login(listed: asyncio.Event, **arguments: Any) -> kopf.AiohttpSession | None:
    """Return a session with this process's account; kopf asks again when it is refused.

    A coroutine: kopf calls plain functions in threads, which have no loop for a session.
    """
    found = kopf.login_with_service_account(**arguments)
    if found is None:
        found = kopf.login_with_kubeconfig(**arguments)
    else:
        found = dataclasses.replace(found, server=_server(found.server))
    return None if found is None else _session(found, listed)


def _server(named: str) -> str:
    """Return the API server's address as the operator's own client takes it from its pod.

    kopf's is a name, which leads nowhere while the cluster's DNS is down.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        return named
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _session(info: kopf.ConnectionInfo, listed: asyncio.Event) -> kopf.AiohttpSession:
    """Return kopf's own connections, watched for the first watch: kopf lists before it."""

    async def answered(
        _session: aiohttp.ClientSession,
        _context: SimpleNamespace,
        answer: aiohttp.TraceRequestEndParams,
    ) -> None:
        url = answer.response.url
        of_jobs = url.path.endswith("/elasticjobs") and "watch" in url.query
        if of_jobs and answer.response.status == HTTPStatus.OK:
            listed.set()

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answered)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        trace_configs=[trace],
    )
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        priority=info.priority,
        expiration=info.expiration,
        aiohttp_session=session,
    )
