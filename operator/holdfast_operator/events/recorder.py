"""Writes Kubernetes events for all jobs, one after another. `news` decides on their text.

Nothing waits for an event, and a failed request is not repeated: a job trains without events.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

import prometheus_client as prometheus

from holdfast_operator.events.news import Digest, EventLine, NewsItem
from holdfast_operator.kube.client import MANAGER, MERGE, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.pods.names import Owner

_log = logging.getLogger(__name__)
CONTROLLER: Final = "holdfast.dev/operator"
"""Reporter in every event."""
EVENTS: Final = prometheus.Counter(
    "holdfast_operator_events_total", "Kubernetes events, by outcome of their write.", ["outcome"]
)
LONGEST_NOTE: Final = 1024
"""Limit of the API server, bytes."""
_RETRY_SECONDS: Final = 5.0
"""Pause after the API server was not reached."""
_IDLE_SECONDS: Final = 3600.0


class _Job:
    """State of one job's events."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.digest = Digest(owner.name, owner.uid, time.monotonic())
        self.waiting: list[NewsItem] = []
        """News before `mark` is known."""
        self.mark: int | None = None
        """Time of the newest event that the API server had, µs: this process may be a new one."""


class Reporter:
    """Events of all jobs."""

    def __init__(self, client: KubeClient, identity: str) -> None:
        """Begin without news; `identity` names this process among its replicas."""
        self._client = client
        self._identity = identity
        self._jobs: dict[str, _Job] = {}
        self._news = asyncio.Event()

    def report(self, owner: Owner, news: Iterable[NewsItem]) -> None:
        """Take news of a job; returns at once."""
        job = self._jobs.setdefault(owner.uid, _Job(owner))
        job.waiting += news
        self._news.set()

    def forget(self, owner: Owner) -> None:
        """Drop a job that is gone, and its events."""
        self._jobs.pop(owner.uid, None)

    async def run(self) -> None:
        """Write events until cancelled."""
        wait: float | None = None
        while True:
            try:
                async with asyncio.timeout(_IDLE_SECONDS if wait is None else wait):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            try:
                wait = await self._write_all()
            except KubeError as error:
                EVENTS.labels("later").inc()
                _log.info("events: %s; again in %.0f s", error, _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)
                wait = 0.0
            except Exception:  # noqa: BLE001 - one event must not end the operator
                EVENTS.labels("failed").inc()
                _log.exception("events could not be written")
                wait = _RETRY_SECONDS

    async def _write_all(self) -> float | None:
        """Write the events that are due; return the seconds until the next, None: none waits."""
        waits = []
        for job in list(self._jobs.values()):
            await self._write(job)
            wait = job.digest.wait(time.monotonic())
            if wait is not None:
                waits.append(wait)
        return min(waits, default=None)

    async def _write(self, job: _Job) -> None:
        if job.waiting:
            if job.mark is None:
                job.mark = await self._newest(job.owner)
            told, job.waiting = job.waiting, []
            job.digest.take(one for one in told if one.at_us >= job.mark)
        for line in job.digest.due(time.monotonic()):
            count = line.count
            try:
                await self._put(job.owner, line)
                EVENTS.labels("written").inc()
            except ApiRefusedError as error:  # a namespace that goes, a text that is refused
                if error.code >= 500 or error.code == 429:
                    raise
                EVENTS.labels("refused").inc()
                _log.info("event %s: %s", line.name, error)
            line.written = count

    async def _newest(self, owner: Owner) -> int:
        chosen = quote(f"regarding.uid={owner.uid},reportingController={CONTROLLER}")
        found = await self._client.call("GET", f"{_path(owner.namespace)}?fieldSelector={chosen}")
        times = [
            (one.get("series") or {}).get("lastObservedTime") or one["eventTime"]
            for one in found["items"]
        ]
        return max(map(_microseconds, times), default=0)

    async def _put(self, owner: Owner, line: EventLine) -> None:
        if line.written:
            try:
                path = f"{_path(owner.namespace)}/{line.name}?fieldManager={MANAGER}"
                await self._client.call("PATCH", path, {"series": _series(line)}, MERGE)
                return
            except ApiRefusedError as error:
                if not error.is_gone:  # the API server has dropped it after its hour
                    raise
        regarding = {**owner.reference, "namespace": owner.namespace}
        # There may be one already: another operator's, or this one's before it was killed.
        await self._client.make(_path(owner.namespace), event(self._identity, regarding, line))


async def warn(client: KubeClient, identity: str, about: dict[str, Any], news: NewsItem) -> None:
    """Write a warning about an object of the operator's own; a failure is logged.

    `identity` names this process among its replicas; `about` is a reference with a namespace.
    """
    name = f"{about['name']}.{uuid.uuid4().hex[:16]}"
    line = EventLine(name=name, news=news, last_us=news.at_us)
    try:
        await client.call("POST", _path(about["namespace"]), event(identity, about, line))
    except KubeError as error:
        _log.info("event %s: %s", news.reason, error)


def event(identity: str, about: dict[str, Any], line: EventLine) -> dict[str, Any]:
    """Return the object of an event about another object, in its namespace."""
    news = line.news
    made: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": line.name, "namespace": about["namespace"]},
        "regarding": about,
        "eventTime": _timestamp(news.at_us),
        "reportingController": CONTROLLER,
        "reportingInstance": identity[:128],
        "type": "Warning" if news.warning else "Normal",
        "reason": news.reason,
        "action": news.reason,
        "note": news.text.encode()[:LONGEST_NOTE].decode(errors="ignore"),
    }
    if line.count > 1:
        made["series"] = _series(line)
    return made


def _path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def _series(line: EventLine) -> dict[str, Any]:
    return {"count": line.count, "lastObservedTime": _timestamp(line.last_us)}


def _timestamp(microseconds: int) -> str:
    whole, rest = divmod(microseconds, 1_000_000)
    moment = dt.datetime.fromtimestamp(whole, dt.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _microseconds(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond
