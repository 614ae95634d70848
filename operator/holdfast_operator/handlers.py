"""kopf as a shell: it watches ElasticJobs and passes every changed one on.

No handler of kopf's does work: a failing one would be logged and forgotten, and its finalizers and
annotations are not wanted on our objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from holdfast_wire import keys

Seen = Callable[[tuple[str, str], Mapping[str, Any], bool], None]
"""Called with a job's namespace and name, its object, and True if the object is gone."""


async def watch_jobs(namespace: str, seen: Seen, began: asyncio.Event) -> None:
    """Watch for ever; return or raise only when kopf has ended, which is an error.

    Args:
        namespace: Namespace to watch; empty: all.
        seen: Called with every change. Events of two objects with the same name may come in any
            order. Deletions during a new list are not delivered.
        began: Set once kopf has started, which replaces the signal handlers of this process.
    """
    registry = kopf.OperatorRegistry()

    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.watching.chunk_size = 500
        # Unused, but two operators with one name would remove each other's.
        settings.persistence.finalizer = "holdfast.dev/kopf-unused"

    async def event(body: kopf.Body, **arguments: Any) -> None:
        metadata = body["metadata"]
        gone = arguments["type"] == "DELETED"
        seen((metadata["namespace"], metadata["name"]), dict(body), gone)

    group, _, version = keys.API_VERSION.partition("/")
    kopf.on.startup(registry=registry)(configure)
    kopf.on.login(registry=registry)(_login)
    kopf.on.event(group, version, "elasticjobs", registry=registry)(event)
    where: dict[str, Any] = {"namespaces": [namespace]} if namespace else {"clusterwide": True}
    # Unused without peering, but kopf's own default asks for the name of a user, which a container
    # does not have.
    where["identity"] = "holdfast-operator"
    await kopf.operator(registry=registry, standalone=True, ready_flag=began, **where)


def _login(**arguments: Any) -> Any:
    found = kopf.login_with_service_account(**arguments)
    return kopf.login_with_kubeconfig(**arguments) if found is None else found
