"""Stub of all kubelets and of the scheduler: writes what they would write, and runs nothing.

Each pod gets a node and an address of 127.0.0.0/8, then the status of a pod that runs. A pod that
is being deleted goes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from cluster.kubelet.client import CONFLICT, MERGE, NOT_FOUND, ApiError, Client
from cluster.kubelet.status import timestamp
from holdfast_wire import keys

PODS_PER_NODE: Final = 30
_PODS: Final = f"/api/v1/pods?labelSelector={keys.LABEL_JOB}"
_PAGE: Final = 250
_WATCH_SECONDS: Final = 240
_AT_ONCE: Final = 24
"""Requests side by side: real kubelets are many."""
_RETRY_SECONDS: Final = 0.5
_TROUBLE: Final = frozenset({429, 500, 503, 504})
"""Codes of an API server that has too much to do."""
_FIRST_ADDRESS: Final = 127 << 24 | 16 << 16
"""127.16.0.0: below it are addresses that others of this machine use."""
Pod = Mapping[str, Any]


class Kubelets:
    """All nodes of a cluster."""

    def __init__(self, client: Client, begins: Callable[[Pod, str], Awaitable[None]]) -> None:
        """Make none yet; `begins` is awaited with each pod and its address before it runs."""
        self._client = client
        self._begins = begins
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken: set[str] = set()
        self.running: dict[str, Pod] = {}
        """Pods by uid, with the status that was written last."""
        self.made: dict[str, float] = {}
        """Monotonic time at which each pod was seen first, by uid."""
        self.events = 0
        """Events of pods, deletions too."""
        self.nodes = 0
        self.serves = True
        """False: new pods stay as they were made."""
        self.fault: BaseException | None = None
        """The first error of the stub's own."""

    async def register(self, count: int) -> None:
        """Make so many Nodes."""
        await asyncio.gather(*(self._quietly(self._node(number)) for number in range(count)))
        self.nodes = count

    async def run(self) -> None:
        """Serve all pods of jobs until cancelled."""
        while True:
            try:
                version = await self._list()
                while True:
                    version = await self._watch(version)
            except (aiohttp.ClientError, ApiError, OSError, TimeoutError):
                await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self) -> str:
        page, listed = "", dict[str, Any]()
        while not listed or page:
            listed = await self._client.call("GET", f"{_PODS}&limit={_PAGE}{page}")
            for one in listed["items"]:
                self._heard("LISTED", one)
            more = listed["metadata"].get("continue")
            page = f"&continue={quote(more)}" if more else ""
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        path = f"{_PODS}&watch=1&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        async for event in self._client.events(path):
            if event["type"] == "ERROR":
                raise ApiError(event["object"].get("code", 0), str(event["object"]))
            version = event["object"]["metadata"]["resourceVersion"]
            self._heard(event["type"], event["object"])
        return version

    async def touch(self, pod: Pod, *, ready: bool, text: str) -> None:
        """Write a pod's status again, with another Ready condition, or another text of it."""
        status = pod["status"]
        now = timestamp(time.time())
        flag = "True" if ready else "False"
        changed = {"type": "Ready", "status": flag, "lastTransitionTime": now, "reason": "Probe"}
        others = [one for one in status["conditions"] if one["type"] != "Ready"]
        conditions = [*others, changed | {"message": text}]
        await self._status(pod, {**status, "conditions": conditions})

    def _heard(self, kind: str, pod: Pod) -> None:
        self.events += kind != "LISTED"
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self.running.pop(uid, None)
            return
        self.made.setdefault(uid, time.monotonic())
        if "deletionTimestamp" in pod["metadata"]:
            self._begin(self._remove(pod))
        elif uid not in self._taken and self.serves:
            self._taken.add(uid)
            runs = pod["status"].get("phase") == "Running"
            self._begin(self._resume(pod) if runs else self._start(pod, len(self._taken)))

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fault = self.fault or task.exception()

    async def _quietly(self, work: Awaitable[None]) -> None:
        async with self._slots:
            await work

    async def _insist(self, method: str, path: str, body: Any, kind: str) -> None:
        while True:
            try:
                await self._client.call(method, path, body, kind)
            except ApiError as error:
                if error.code in {NOT_FOUND, CONFLICT}:
                    return
                if error.code not in _TROUBLE:
                    raise
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            else:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _start(self, pod: Pod, number: int) -> None:
        metadata = pod["metadata"]
        node, at = f"n{number % self.nodes}", address(number)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._insist("POST", f"{_path(pod)}/binding", binding, "application/json")
        await self._begins(pod, at)
        await self._status(pod, _running(pod, node, at))

    async def _resume(self, pod: Pod) -> None:
        """Serve a pod that runs since before this process."""
        await self._begins(pod, pod["status"]["podIP"])
        self.running[pod["metadata"]["uid"]] = _kept(pod, pod["status"])

    async def _status(self, pod: Pod, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._insist("PATCH", f"{_path(pod)}/status", body, MERGE)
        self.running[pod["metadata"]["uid"]] = _kept(pod, status)

    async def _remove(self, pod: Pod) -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        options["preconditions"] = {"uid": pod["metadata"]["uid"]}
        await self._insist("DELETE", _path(pod), options, "application/json")

    async def _node(self, number: int) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}}
        await self._insist("POST", "/api/v1/nodes", node, "application/json")
        now = timestamp(time.time())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        status = {"conditions": [ready | times], "allocatable": {"pods": str(PODS_PER_NODE)}}
        await self._insist("PATCH", f"/api/v1/nodes/n{number}/status", {"status": status}, MERGE)


def _kept(pod: Pod, status: Mapping[str, Any]) -> Pod:
    """Return what is needed to write a pod's status again: a whole one is five times as large."""
    names = ("name", "namespace", "uid", "labels")
    return {"metadata": {name: pod["metadata"][name] for name in names}, "status": status}


def _path(pod: Pod) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def address(number: int) -> str:
    """Return the address of the pod of a number."""
    value = _FIRST_ADDRESS + number
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def _running(pod: Pod, node: str, address: str) -> dict[str, Any]:
    """The status of a pod all of whose containers run, as large as a kubelet's."""
    now = timestamp(time.time())
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds
        ],
        "containerStatuses": [_container(one, now, node) for one in pod["spec"]["containers"]],
    }


def _container(spec: Mapping[str, Any], now: str, node: str) -> dict[str, Any]:
    digest = f"{abs(hash((spec['name'], node))):064x}"
    return {
        "name": spec["name"],
        "image": spec.get("image", ""),
        "imageID": f"registry.example/training@sha256:{digest}",
        "containerID": f"containerd://{digest}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
