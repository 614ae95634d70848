"""Nodes whose pods are nothing but their status: for jobs that are larger than a machine.

A pod there counts as running and ready at once, and is gone as soon as it is deleted. Only pods
that tolerate the taint come here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from cluster.kubelet.client import CONFLICT, MERGE, NOT_FOUND, ApiError
from cluster.kubelet.node import Node
from cluster.kubelet.status import timestamp

_log = logging.getLogger(__name__)
KEY: Final = "cluster.test/paper"
"""Label of such a node, and its taint's key."""
_RETRY_SECONDS: Final = 0.2


class PaperNode(Node):
    """A Node without processes."""

    def _heard(self, kind: str, manifest: Mapping[str, Any]) -> None:
        """Have a pod's status written, once, or its object taken away."""
        metadata = manifest["metadata"]
        if kind == "DELETED":
            return
        if "deletionTimestamp" in metadata:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            self._write(
                "DELETE", manifest, "", {"kind": "DeleteOptions", "apiVersion": "v1", **body}
            )
        elif manifest["status"].get("phase") == "Pending":
            body = {
                "metadata": {"uid": metadata["uid"]},
                "status": _running(manifest, self.address),
            }
            self._write("PATCH", manifest, "/status", body)

    def _write(self, method: str, manifest: Mapping[str, Any], below: str, body: Any) -> None:
        task = asyncio.create_task(self._insist(method, manifest, below, body))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _insist(
        self, method: str, manifest: Mapping[str, Any], below: str, body: Any
    ) -> None:
        metadata = manifest["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}{below}"
        while True:
            try:
                if method == "PATCH":
                    await self.client.call(method, path, body, MERGE)
                else:
                    await self.client.call(method, path, body)
                return
            except ApiError as error:
                if error.code in {NOT_FOUND, CONFLICT}:
                    return
                _log.info("pod %s: %s", metadata["name"], error)
            except (aiohttp.ClientError, TimeoutError) as error:
                _log.info("pod %s: %r", metadata["name"], error)
            await asyncio.sleep(_RETRY_SECONDS)

    def _manifest(self) -> dict[str, Any]:
        found = super()._manifest()
        found["metadata"]["labels"][KEY] = "true"
        found["spec"]["taints"] = [{"key": KEY, "value": "true", "effect": "NoSchedule"}]
        return found


def _running(manifest: Mapping[str, Any], host: str) -> dict[str, Any]:
    """The status of a pod all of whose containers run."""
    now = timestamp(time.time())
    kinds = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "hostIP": host,
        "startTime": now,
        "conditions": [
            *(manifest["status"].get("conditions") or ()),
            *({"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds),
        ],
        "containerStatuses": [
            {
                "name": one["name"],
                "image": one.get("image", ""),
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for one in manifest["spec"]["containers"]
        ],
    }
