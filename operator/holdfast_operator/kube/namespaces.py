"""Namespaces whose jobs are looked after: each is watched by itself, and may come and go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import Final

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError
from holdfast_operator.kube.reflector import Heard, PodReflector
from holdfast_operator.pods.record import PodRecord
from holdfast_wire import keys

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 20.0
"""Time between two looks whether one of several namespaces may be read. Shorter than the 54 s
for which kopf repeats a refused request before it ends."""
_RETRY_SECONDS: Final = 1.0
_GONE: Final = frozenset({403, 404})
"""The Role in a namespace goes with it; without the CRD there are no jobs."""


class WatchedNamespace:
    """One namespace, or all of them: whether its jobs may be read and are known, and its pods."""

    def __init__(self, client: KubeClient, name: str, heard: Heard) -> None:
        """Begin without pods.

        Args:
            client: The API server.
            name: Of the namespace; empty: all.
            heard: Called with every change of a pod.
        """
        self._client = client
        self.name = name
        self.pods = PodReflector(client, name, heard)
        self.listed = asyncio.Event()
        """Set once all its jobs are known, and their watch is open."""
        self.refused = False
        """True: it is not there, or its Role is not."""
        where = name and f"/namespaces/{name}"
        self.jobs = f"/apis/{keys.API_VERSION}{where}/elasticjobs"
        """Path of its jobs."""

    @property
    def ready(self) -> bool:
        """Return True if all its jobs and pods are known."""
        return self.pods.synced.is_set() and self.listed.is_set()

    def begin(self) -> None:
        """Take nothing for known: it is watched for the first time, or was left meanwhile."""
        self.listed.clear()
        self.pods.synced.clear()
        self.pods.last_activity = time.monotonic()

    async def can_be_read(self) -> bool:
        """Ask for its jobs; say what stands against it."""
        try:
            await self._client.call("GET", f"{self.jobs}?limit=1")
        except KubeError as error:
            _log.warning("ElasticJobs cannot be listed yet: %s", error)
            self.refused = isinstance(error, ApiRefusedError) and error.code in _GONE
            return False
        self.refused = False
        return True

    async def until_readable(self) -> None:
        """Wait until its jobs can be listed."""
        while True:
            if await self.can_be_read():
                return
            await asyncio.sleep(_LOOK_SECONDS if self.refused else _RETRY_SECONDS)

    async def until_refused(self) -> None:
        """Wait until its jobs can be listed no more; an API server that is away refuses nothing."""
        while not self.refused:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.can_be_read()


class WatchedNamespaces:
    """All of them."""

    def __init__(self, client: KubeClient, names: Sequence[str], heard: Heard) -> None:
        """Begin without pods; the one empty name stands for all namespaces."""
        self.each: Final = tuple(WatchedNamespace(client, name, heard) for name in names)
        self._by_name = {one.name: one for one in self.each}

    def of(self, key: tuple[str, str]) -> list[PodRecord]:
        """Return the pods of a job."""
        return (self._by_name.get(key[0]) or self._by_name[""]).pods.of(key)

    def nodes(self) -> Collection[str]:
        """Return the Kubernetes nodes that have pods of jobs."""
        return frozenset().union(*(one.pods.nodes() for one in self.each))

    @property
    def ready(self) -> bool:
        """Return True if all jobs and pods are known; of several namespaces some may refuse."""
        served = [one for one in self.each if not one.refused]
        return bool(served) and all(one.ready for one in served)

    def silent_s(self) -> float:
        """Return for how long the most silent of the namespaces has shown no sign of life, s."""
        spoke = [
            one.pods.last_activity
            for one in self.each
            if one.pods.synced.is_set() and not one.refused
        ]
        return time.monotonic() - min(spoke) if spoke else 0.0

    async def until_readable(self) -> None:
        """Wait until the jobs of one namespace can be listed; the others are asked, too.

        Before the CRD exists kopf would warn once and never serve.
        """
        while True:
            if any([await one.can_be_read() for one in self.each]):
                return
            await asyncio.sleep(_RETRY_SECONDS)
