"""Strikes against Kubernetes nodes of all jobs, and the ConfigMap that keeps them.

It is read once, and written at most every few seconds. `strikes` says what is kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import prometheus_client as prometheus

from holdfast_operator.events.news import notice
from holdfast_operator.events.recorder import warn
from holdfast_operator.kube.client import MANAGER, MERGE, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.nodes.strikes import (
    DamagedHistoryError,
    ExcludedNode,
    NodeStrike,
    exclude,
    from_data,
    merge,
    to_data,
    with_room,
)
from holdfast_operator.settings import OperatorSettings
from holdfast_wire.messages import NodeStruck, NoticeReceived

_log = logging.getLogger(__name__)
SUFFIX: Final = "-node-history"
"""Follows the name of the Lease in that of the ConfigMap: each installation has one of its own."""
WRITE_SECONDS: Final = 5.0
"""Least time between two writes: strikes come in bursts, and their weight halves in hours."""
_LOOK_SECONDS: Final = 60.0
"""Time between two looks at a ConfigMap that cannot be used: a person has to mend it."""
_LAST_WRITE_SECONDS: Final = 5.0
"""Deadline of the last write: the Lease and the pod's grace wait for it."""
UNREADABLE: Final = "NodeHistoryUnreadable"
"""Reason of the event about a ConfigMap that cannot be used."""
WRITES: Final = prometheus.Counter(
    "holdfast_operator_node_history_writes_total",
    "Writes of the ConfigMap with strikes against nodes, by outcome.",
    ["outcome"],
)


class _Map(enum.Enum):
    """Knowledge of the ConfigMap."""

    UNREAD = enum.auto()
    """Its newest version was not read."""
    MISSING = enum.auto()
    READ = enum.auto()
    FOREIGN = enum.auto()
    """It holds something else: it is left alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Judged:
    """The nodes to exclude, at one moment: thousands of jobs ask within seconds."""

    at: float = 0.0
    nodes: int = 0
    excluded: tuple[ExcludedNode, ...] = ()


class NodeHistory:
    """The strikes that count; they also work without the ConfigMap, until this process ends."""

    def __init__(
        self,
        client: KubeClient,
        settings: OperatorSettings,
        changed: Callable[[Collection[str]], None] = lambda _: None,
        nodes: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Begin without strikes.

        Args:
            client: The API server.
            settings: The operator's.
            changed: Called with the Kubernetes nodes that have a new strike.
            nodes: Returns the names of the cluster's nodes.
        """
        namespace = self._namespace = settings.namespace
        self._client = client
        self._name = f"{settings.lease}{SUFFIX}"
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._identity = settings.identity
        self._percent = settings.avoided_nodes_percent
        self._changed = changed
        self._nodes = nodes
        self._judged = _Judged()
        self._strikes: tuple[NodeStrike, ...] = ()
        self._map = _Map.UNREAD
        self._version = ""
        """Version of the ConfigMap that the strikes were merged with."""
        self._unwritten = False
        self._not_before = 0.0
        """Monotonic time of the next look at a ConfigMap that cannot be used."""
        self._fault = ""

    def strikes(self) -> tuple[NodeStrike, ...]:
        """Return the kept strikes, oldest first."""
        return self._strikes

    def add(self, strikes: Iterable[NodeStrike]) -> None:
        """Take strikes, some of them again, or taken back; returns at once."""
        before = self._strikes
        new = list(strikes)
        self._strikes = merge(before, new, time.time())
        known = {one.identity for one in before}
        hosts = {one.host for one in self._strikes if one.identity not in known}
        hosts |= {one.host for one in new if one.withdrawn and one.identity in known}
        if hosts:
            self._unwritten = True
            self._judged = _Judged()
            self._changed(hosts)

    def elsewhere(self, uid: str, hosts: Collection[str]) -> tuple[NodeStruck, ...]:
        """Return the strikes of all jobs but that of a uid on these Kubernetes nodes."""
        chosen = (one for one in self._strikes if one.job_uid != uid and one.host in hosts)
        return tuple(one.as_message() for one in chosen)

    def excluded(self, workers: int) -> tuple[ExcludedNode, ...]:
        """Return the nodes that new pods avoid, for a job of so many workers."""
        now = time.time()
        if not self._judged.at <= now < self._judged.at + WRITE_SECONDS:
            nodes = self._nodes()
            found = exclude(self._strikes, nodes, self._percent, now)
            self._judged = _Judged(now, len(nodes), found)
        return with_room(self._judged.excluded, self._judged.nodes, workers)

    async def keep(self) -> None:
        """Keep the ConfigMap up to date until cancelled."""
        while True:
            await self.see_to_it()
            await asyncio.sleep(WRITE_SECONDS)

    async def see_to_it(self) -> None:
        """Read the ConfigMap if its newest version is not known; write it if there is news."""
        if time.monotonic() < self._not_before:
            return
        try:
            if self._map in {_Map.UNREAD, _Map.FOREIGN}:
                await self._read()
            if self._unwritten and self._map is not _Map.FOREIGN:
                await self._write()
        except KubeError as error:
            WRITES.labels("later").inc()
            self._note(f"the ConfigMap of strikes against nodes: {error}")
            refused = isinstance(error, ApiRefusedError) and error.is_admission
            self._not_before = time.monotonic() + (_LOOK_SECONDS if refused else WRITE_SECONDS)
        except Exception:  # noqa: BLE001 - the top: jobs train without a history
            WRITES.labels("failed").inc()
            _log.exception("strikes against nodes were not kept")
        else:
            self._fault = "" if self._map is not _Map.FOREIGN else self._fault

    async def give_up(self) -> None:
        """Write what is not written yet, before a successor reads it."""
        try:
            async with asyncio.timeout(_LAST_WRITE_SECONDS):
                await self.see_to_it()
        except TimeoutError:
            _log.warning("the newest strikes against nodes were not written: no answer in time")

    async def _read(self) -> None:
        found = await self._client.find(f"{self._path}/{self._name}")
        if found is None:
            self._map, self._version = _Map.MISSING, ""
            self._unwritten = bool(self._strikes)
            return
        try:
            kept = from_data(found.get("data") or {})
        except DamagedHistoryError as error:
            await self._leave_alone(found, error)
            return
        self._map = _Map.READ
        self._version = found["metadata"]["resourceVersion"]
        self.add(kept)
        self._unwritten = {one.identity for one in self._strikes} != {one.identity for one in kept}

    async def _leave_alone(self, found: dict[str, Any], error: DamagedHistoryError) -> None:
        """Say once of each version that the ConfigMap cannot be used."""
        self._map = _Map.FOREIGN
        self._not_before = time.monotonic() + _LOOK_SECONDS
        text = (
            f"ConfigMap {self._namespace}/{self._name} holds no history of nodes: {error}. It is "
            "left alone, and strikes are forgotten when this operator ends; delete it to have it "
            "made anew"
        )
        if self._note(text):
            about = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": self._name,
                "namespace": self._namespace,
                "uid": found["metadata"]["uid"],
            }
            news = notice(UNREADABLE, text, time.time())
            await warn(self._client, self._identity, about, news)

    async def _write(self) -> None:
        """Write all strikes; a newer version is read and merged first, at the next time."""
        self._strikes = merge(self._strikes, (), time.time())
        body = self._body()
        try:
            if self._map is _Map.MISSING:
                made = await self._client.call(
                    "POST", f"{self._path}?fieldManager={MANAGER}", body, may_repeat=False
                )
            else:
                # A patch of its own keys: what others have put beside them stays.
                path = f"{self._path}/{self._name}?fieldManager={MANAGER}"
                made = await self._client.call("PATCH", path, body, MERGE)
        except ApiRefusedError as error:
            if not (error.exists or error.is_gone):
                raise
            self._map = _Map.UNREAD
            WRITES.labels("outdated").inc()
            return
        self._map, self._version = _Map.READ, made["metadata"]["resourceVersion"]
        self._unwritten = False
        WRITES.labels("written").inc()

    def _body(self) -> dict[str, Any]:
        metadata = {"name": self._name, "namespace": self._namespace}
        if self._version:
            metadata["resourceVersion"] = self._version
        data = to_data(self._strikes)
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def _note(self, fault: str) -> bool:
        """Log a fault, once until it changes; return whether it was new."""
        new = fault != self._fault
        if new:
            _log.warning("%s", fault)
        self._fault = fault
        return new


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterNodes:
    """Knowledge of the cluster's nodes that no job has by itself."""

    history: NodeHistory
    notice: Callable[[str], NoticeReceived | None] = lambda _: None
    """Returns the notice of a node."""
    silent: Callable[[], frozenset[str]] = frozenset
    """Returns the nodes of whose kubelet the cluster hears nothing."""
