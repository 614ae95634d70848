"""A copy of all pods of jobs, kept up to date: list, watch, and on a gap list again and compare."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.failures import KubeError, RefusedError
from holdfast_operator.kube.pods import PodRecord, read_pod
from holdfast_wire import keys

_log = logging.getLogger(__name__)
_PAGE: Final = 500
_WATCH_S: Final = 240
"""The API server ends a watch after this long; bookmarks come every minute before."""
_SILENCE_S: Final = 90.0
"""Longer than between two bookmarks: a connection that brings nothing for so long is dead."""
_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 10.0

Heard = Callable[[PodRecord, bool], None]
"""Called with a pod that changed, and whether it is gone."""


class PodReflector:
    """All pods with our label, by the key of their job."""

    def __init__(self, client: KubeClient, namespace: str, heard: Heard) -> None:
        """Make one that knows nothing yet.

        Args:
            client: The API server.
            namespace: Where to look; empty: everywhere.
            heard: Told of every change.
        """
        self._client = client
        where = f"/namespaces/{namespace}" if namespace else ""
        self._path = f"/api/v1{where}/pods?labelSelector={quote(keys.LABEL_JOB)}"
        self._heard = heard
        self._pods: dict[str, PodRecord] = {}
        self._by_job: dict[tuple[str, str], dict[str, PodRecord]] = {}
        self.synced = asyncio.Event()
        """Set once the first list is in."""
        self.last_activity = 0.0
        """Monotonic time of the newest sign of life."""

    def of(self, key: tuple[str, str]) -> list[PodRecord]:
        """The pods of a job."""
        return list(self._by_job.get(key, {}).values())

    async def run(self) -> None:
        """Follow the pods for ever."""
        wait = _RETRY_S
        while True:
            try:
                version = await self._list()
                wait = _RETRY_S
                while True:
                    version = await self._watch(version)
            except KubeError as error:
                _log.warning("pods: %s; listing again", error)
                if isinstance(error, RefusedError) and error.code == 410:
                    continue
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                wait = min(_LONGEST_RETRY_S, 2 * wait)

    async def _list(self) -> str:
        seen: set[str] = set()
        page = ""
        while True:
            listed = await self._client.call("GET", f"{self._path}&limit={_PAGE}{page}")
            for body in listed["items"]:
                seen.add(body["metadata"]["uid"])
                self._take(body)
            more = listed["metadata"].get("continue")
            if not more:
                break
            page = f"&continue={quote(more)}"
        # What went while nobody watched: no event will ever tell.
        for uid in self._pods.keys() - seen:
            self._drop(uid)
        self._alive()
        self.synced.set()
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        path = (
            f"{self._path}&watch=1&allowWatchBookmarks=true"
            f"&timeoutSeconds={_WATCH_S}&resourceVersion={version}"
        )
        async for event in self._client.watch(path, _SILENCE_S):
            self._alive()
            body = event["object"]
            version = body["metadata"]["resourceVersion"]
            if event["type"] == "DELETED":
                self._take(body)
                self._drop(body["metadata"]["uid"])
            elif event["type"] != "BOOKMARK":
                self._take(body)
        return version

    def _alive(self) -> None:
        self.last_activity = time.monotonic()

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
    """Whether a pod still says that it is of the same job and place.

    People can edit its labels: what it was known as is gone then, for the planner and the master.
    """
    return record is not None and (known.key, known.slot) == (record.key, record.slot)
