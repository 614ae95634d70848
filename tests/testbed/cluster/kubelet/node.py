"""One Node of the cluster: registered, renewed, and the pods that the scheduler gives it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from cluster.kubelet.client import MERGE, NOT_FOUND, STRATEGIC, ApiError, Client
from cluster.kubelet.network import Network
from cluster.kubelet.pod import Pod
from cluster.kubelet.status import timestamp

_log = logging.getLogger(__name__)
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_RENEW_SECONDS: Final = 1.0
_HEARTBEATS: Final = 10
"""Renewals of the Lease between two writes of the status."""
_OVER: Final = frozenset({"Succeeded", "Failed"})


class Node:
    """One Node; its pods are processes of this machine."""

    def __init__(
        self, name: str, client: Client, network: Network, folder: Path, path: str, gpus: int
    ) -> None:
        self.name = name
        self.address = "127.0.0.1"
        self.client = client
        self.network = network
        self.folder = folder
        self.path = path
        self.refused_images: set[str] = set()
        self.start_delay_s = 0.0
        self.stuck = False
        self.silent = False
        self.port = 0
        """Where its logs are read; set before it starts."""
        self.pods: dict[str, Pod] = {}
        self._gpus = gpus
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Register it, and take pods from now on."""
        with contextlib.suppress(ApiError):  # it exists after a restart of the kubelet
            await self.client.call("POST", "/api/v1/nodes", self._manifest())
        await self._heartbeat()
        await self._renew()
        query = f"fieldSelector=spec.nodeName%3D{self.name}"
        self._tasks = [
            asyncio.create_task(self._keep_alive()),
            asyncio.create_task(self.client.follow("/api/v1/pods", self._heard, query)),
        ]

    async def stop(self) -> None:
        """End all its pods' processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(pod.vanish() for pod in self.pods.values()))
        await self.client.close()

    async def die(self) -> None:
        """Be lost: the network is gone, then processes end; nothing is reported, no heartbeat."""
        self.silent = True
        places = [pod.address for pod in self.pods.values() if pod.address]
        await asyncio.gather(*map(self.network.cut, places))
        await asyncio.gather(*(pod.vanish() for pod in self.pods.values()))
        self.pods.clear()

    async def come_back(self) -> None:
        """Be there again: pods of a node that was lost have ended, those of a silent one report."""
        self.silent = False
        await self._heartbeat()
        await self._renew()
        query = f"fieldSelector=spec.nodeName%3D{self.name}"
        known = tuple(self.pods)
        listed = await self.client.call("GET", f"/api/v1/pods?{query}")
        there = {one["metadata"]["uid"] for one in listed["items"]}
        for uid in known:
            if uid not in there and uid in self.pods:  # taken away, which nobody told it
                self._end(self.pods.pop(uid))
        for one in listed["items"]:
            self._heard("MODIFIED", one)
        for pod in self.pods.values():
            pod.speak()

    def find(self, namespace: str, name: str) -> Pod | None:
        """Return the newest pod of that name."""
        named = [p for p in self.pods.values() if (p.namespace, p.name) == (namespace, name)]
        return named[-1] if named else None

    def _heard(self, kind: str, manifest: Mapping[str, Any]) -> None:
        if self.silent:
            return
        uid = manifest["metadata"]["uid"]
        pod = self.pods.get(uid)
        if kind == "DELETED":
            if pod is not None:
                self._end(self.pods.pop(uid))
            return
        going = "deletionTimestamp" in manifest["metadata"]
        if pod is None:
            if manifest["status"].get("phase") in _OVER and not going:
                return
            pod = self.pods[uid] = Pod(self, manifest)
        pod.take(manifest)
        if going:
            pod.delete()

    def _end(self, pod: Pod) -> None:
        task = asyncio.create_task(pod.vanish())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _keep_alive(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            count += 1
            if self.silent:
                continue
            try:
                await self._renew()
                if count % _HEARTBEATS == 0:
                    await self._heartbeat()
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                _log.info("node %s: %s", self.name, error)

    async def _renew(self) -> None:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
        try:
            await self.client.call("PATCH", f"{_LEASES}/{self.name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name},
                "spec": spec,
            }
            with contextlib.suppress(ApiError):
                await self.client.call("POST", _LEASES, body)

    async def _heartbeat(self) -> None:
        now = timestamp(time.time())

        def condition(kind: str, status: str, reason: str) -> dict[str, str]:
            times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
            return {"type": kind, "status": status, "reason": reason, "message": reason, **times}

        status = self._status() | {
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ]
        }
        path = f"/api/v1/nodes/{self.name}/status"
        await self.client.call("PATCH", path, {"status": status}, STRATEGIC)

    def _manifest(self) -> dict[str, Any]:
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": f"z{int(self.name[1:]) % 2}",
        }
        metadata = {"name": self.name, "labels": labels}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}

    def _status(self) -> dict[str, Any]:
        room = {
            "cpu": "64",
            "memory": "512Gi",
            "pods": "110",
            "ephemeral-storage": "1Ti",
            "nvidia.com/gpu": str(self._gpus),
        }
        info = {
            "kubeletVersion": "v1.37.2",
            "kubeProxyVersion": "",
            "architecture": "amd64",
            "operatingSystem": "linux",
            "containerRuntimeVersion": "process://1",
            "kernelVersion": os.uname().release,
            "osImage": "process",
            "machineID": self.name,
            "systemUUID": self.name,
            "bootID": self.name,
        }
        return {
            "capacity": room,
            "allocatable": room,
            "addresses": [
                {"type": "InternalIP", "address": self.address},
                {"type": "Hostname", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "nodeInfo": info,
            # Has the API server pass websockets on as they are: exec, and both port-forwards.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        }
