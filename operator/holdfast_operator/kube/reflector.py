"""Follows one kind of object: list, watch, and after a gap list again and compare.

`PodReflector` keeps the pods of jobs, `nodes.reflector` the nodes.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import quote

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.pods.record import PodRecord, read_pod
from holdfast_wire import keys

_log = logging.getLogger(__name__)
_PAGE: Final = 250
"""Objects in one answer: 25 kB for each pod while it is read."""
_WATCH_SECONDS: Final = 60
"""The API server ends a watch after this long; the next one goes on from there. Bookmarks are no
sign of life: where no object of the kind changes, there is none for minutes."""
_SILENCE_SECONDS: Final = 90.0
"""Longer than a watch: a connection without data for this long, and without an end, is dead."""
_RETRY_SECONDS: Final = 0.5
_LONGEST_RETRY_SECONDS: Final = 10.0
Heard = Callable[[PodRecord, bool], None]
"""Called with a pod that changed, and True if it is gone."""


class Reflector(abc.ABC):
    """All objects of one kind."""

    def __init__(self, client: KubeClient, path: str) -> None:
        """Begin without objects; `path`: of their list, perhaps with a query."""
        self._client = client
        self._path = path
        self._said = ""
        self._query = f"{path}{'&' if '?' in path else '?'}"
        self.synced = asyncio.Event()
        """Set after the first list."""
        self.last_activity = 0.0
        """Monotonic time of the newest sign of life."""

    @abc.abstractmethod
    def _uids(self) -> Collection[str]:
        """Return the uids of the known objects."""

    @abc.abstractmethod
    def _take(self, body: dict[str, Any]) -> None:
        """Note an object that was seen."""

    @abc.abstractmethod
    def _drop(self, uid: str) -> None:
        """Note that an object is gone; it need not be known."""

    async def run(self) -> None:
        """Watch the objects until cancelled."""
        wait = _RETRY_SECONDS
        while True:
            try:
                version = await self._list()
                wait, self._said = _RETRY_SECONDS, ""
                while True:
                    version = await self._watch(version)
            except KubeError as error:
                self._say(error)
                if isinstance(error, ApiRefusedError) and error.code == 410:
                    continue
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                wait = min(_LONGEST_RETRY_SECONDS, 2 * wait)

    def _say(self, error: KubeError) -> None:
        """Say what went wrong, each error once in a row."""
        kind = self._path.partition("?")[0].rpartition("/")[2]
        level = logging.DEBUG if str(error) == self._said else logging.WARNING
        _log.log(level, "%s: %s; listing again", kind, error)
        self._said = str(error)

    async def _list(self) -> str:
        seen: set[str] = set()
        page = ""
        while True:
            listed = await self._client.call("GET", f"{self._query}limit={_PAGE}{page}")
            for body in listed["items"]:
                seen.add(body["metadata"]["uid"])
                self._take(body)
            more = listed["metadata"].get("continue")
            if not more:
                break
            page = f"&continue={quote(more)}"
        # Objects that went while there was no watch: no event will report them.
        for uid in set(self._uids()) - seen:
            self._drop(uid)
        self._alive()
        self.synced.set()
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        path = (
            f"{self._query}watch=1&allowWatchBookmarks=true"
            f"&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        )
        async for event in self._client.watch(path, _SILENCE_SECONDS):
            self._alive()
            body = event["object"]
            version = body["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._take(body)
                self._drop(body["metadata"]["uid"])
            elif event["type"] != "BOOKMARK":
                self._take(body)
        self._alive()  # also an end without an event is an answer
        return version

    def _alive(self) -> None:
        self.last_activity = time.monotonic()


class PodReflector(Reflector):
    """All pods with our label, by the key of their job."""

    def __init__(self, client: KubeClient, namespace: str, heard: Heard) -> None:
        """Begin without pods; an empty namespace: all. `heard` is called with every change."""
        where = f"/namespaces/{namespace}" if namespace else ""
        super().__init__(client, f"/api/v1{where}/pods?labelSelector={quote(keys.LABEL_JOB)}")
        self._heard = heard
        self._pods: dict[str, PodRecord] = {}
        self._by_job: dict[tuple[str, str], dict[str, PodRecord]] = {}

    def of(self, key: tuple[str, str]) -> list[PodRecord]:
        """Return the pods of a job."""
        return list(self._by_job.get(key, {}).values())

    def nodes(self) -> frozenset[str]:
        """Return the Kubernetes nodes that have pods of jobs."""
        return frozenset(pod.node for pod in self._pods.values() if pod.node)

    def _uids(self) -> Collection[str]:
        return self._pods.keys()

    def _take(self, body: dict[str, Any]) -> None:
        record = read_pod(body)
        known = self._pods.get(body["metadata"]["uid"])
        if known is not None and not _in_its_place(known, record):
            self._drop(known.uid)
        if record is None or known == record:
            return
        self._pods[record.uid] = record
        self._by_job.setdefault(record.key, {})[record.uid] = record
        self._heard(record, False)

    def _drop(self, uid: str) -> None:
        record = self._pods.pop(uid, None)
        if record is None:
            return
        of_job = self._by_job[record.key]
        del of_job[uid]
        if not of_job:
            del self._by_job[record.key]
        self._heard(record, True)


def _in_its_place(known: PodRecord, record: PodRecord | None) -> bool:
    """Return True if a pod's labels still name the same job and place.

    People can edit its labels: for planner and master the pod they knew is gone then.
    """
    return record is not None and (known.key, known.slot) == (record.key, record.slot)
