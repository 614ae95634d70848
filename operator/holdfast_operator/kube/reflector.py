"""Follows one kind of object: list, watch, and after a gap list again and compare.

Belongs here: the course of it. Does not belong here: what is kept of an object (the subclasses:
`pod_reflector`, `node_reflector`).
"""

from __future__ import annotations

import abc
import asyncio
import logging
import random
import time
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError

_log = logging.getLogger(__name__)
_PAGE: Final = 500
_WATCH_SECONDS: Final = 60
"""The API server ends a watch after this long; the next one goes on from there. Bookmarks are no
sign of life: where no object of the kind changes, there is none for minutes."""
_SILENCE_SECONDS: Final = 90.0
"""Longer than a watch: a connection without data for this long, and without an end, is dead."""
_RETRY_SECONDS: Final = 0.5
_LONGEST_RETRY_SECONDS: Final = 10.0


class Reflector(abc.ABC):
    """All objects of one kind."""

    def __init__(self, client: KubeClient, path: str) -> None:
        """Begin without objects; `path`: of their list, perhaps with a query."""
        self._client = client
        self._path = path
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
        """Watch the objects for ever."""
        wait = _RETRY_SECONDS
        while True:
            try:
                version = await self._list()
                wait = _RETRY_SECONDS
                while True:
                    version = await self._watch(version)
            except KubeError as error:
                self._say(error)
                if isinstance(error, ApiRefusedError) and error.code == 410:
                    continue
                await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                wait = min(_LONGEST_RETRY_SECONDS, 2 * wait)

    def _say(self, error: KubeError) -> None:
        kind = self._path.partition("?")[0].rpartition("/")[2]
        _log.warning("%s: %s; listing again", kind, error)

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
