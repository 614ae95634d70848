"""Root key of all jobs' certificates, and the Secret that keeps it for the next operator."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import prometheus_client as prometheus

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import KubeError
from holdfast_wire.authority import ROOT_KEY_BYTES, new_root_key

_log = logging.getLogger(__name__)
ROOT_SECRET: Final = "holdfast-operator-root-key"  # noqa: S105 - a name
_ROOT_FIELD: Final = "root-key"
_LOOK_SECONDS: Final = 10.0
"""Time between two looks at the Secret. An operator that ends in order looks once more. Only a
crash within that time of a deletion leaves its successor without the key."""
_LAST_LOOK_SECONDS: Final = 5.0
"""Deadline of the last look: the Lease and the pod's grace wait for it."""
_MOST_JOBS: Final = 500
_SHOWN: Final = 20
"""Names of jobs with a lost key in one log line."""
KEPT: Final = prometheus.Gauge(
    "holdfast_operator_root_key_kept",
    "1 while the Secret holds the root key that this operator works with.",
)


class RootKey:
    """The key, while an operator leads."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        """Begin without a key; `namespace` is the operator's own."""
        self._client = client
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}/secrets"
        self._key = b""
        self._fresh = False
        self._judged = ""

    async def load(self) -> bytes:
        """Return the key; the first operator of a namespace makes it.

        Raises:
            KubeError: the API server refused, or cannot be reached.
            ValueError: The Secret holds no key.
        """
        found = await self._client.find(f"{self._path}/{ROOT_SECRET}")
        if found is None:
            if await self._make(key := new_root_key()):
                self._fresh = True
                return self._take(key)
            found = await self._client.call("GET", f"{self._path}/{ROOT_SECRET}")
        if (known := _key_of(found)) is None:
            raise ValueError(
                f"Secret {self._namespace}/{ROOT_SECRET} has no {_ROOT_FIELD} in its data; restore "
                "it from a backup, or delete it to have all jobs get new certificates"
            )
        return self._take(known)

    def _take(self, key: bytes) -> bytes:
        self._key = key
        KEPT.set(1)
        return key

    async def keep(self) -> None:
        """Keep the key in the Secret until cancelled: with another, a successor loses every job."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.see_to_it()

    async def see_to_it(self) -> None:
        """Put a missing Secret back; log an error if it holds another content."""
        try:
            found = await self._client.find(f"{self._path}/{ROOT_SECRET}")
            if found is None:
                made = await self._make(self._key)
                KEPT.set(made)
                if made:
                    _log.error(
                        "Secret %s was deleted and is put back: every job's certificates are "
                        "derived from it",
                        ROOT_SECRET,
                    )
                return
        except KubeError as error:
            _log.warning("the Secret of the root key was not looked after: %s", error)
            return
        self._judge(found)

    async def give_up(self) -> None:
        """Look once more before a successor reads the Secret."""
        if not self._key:
            return
        try:
            async with asyncio.timeout(_LAST_LOOK_SECONDS):
                await self.see_to_it()
        except TimeoutError:
            _log.warning("the Secret of the root key was not looked after: no answer in time")

    async def warn_of_strangers(self, jobs: Iterable[str]) -> None:
        """Name the running jobs if this operator had to make a key: theirs was another one.

        `jobs`: paths of the ElasticJobs that it reconciles.
        """
        if not self._fresh:
            return
        items: list[dict[str, Any]] = []
        for path in jobs:
            try:
                found = await self._client.call("GET", f"{path}?limit={_MOST_JOBS}")
                items += found["items"]
            except KubeError as error:
                _log.warning("jobs of an earlier root key were not looked for: %s", error)
        running = (one["metadata"] for one in items if _runs(one))
        names = sorted(f"{one['namespace']}/{one['name']}" for one in running)
        if names:
            _log.critical(
                "Secret %s was gone, and a new root key is made; %d jobs run with certificates of "
                "the one before, and cannot be reached: %s. Restore the Secret from a backup and "
                "restart the operator, or delete and create these jobs anew",
                ROOT_SECRET,
                len(names),
                ", ".join(names[:_SHOWN]),
            )

    def _judge(self, found: Mapping[str, Any]) -> None:
        key = _key_of(found)
        same = key is not None and hmac.compare_digest(key, self._key)
        KEPT.set(same)
        version = str(found["metadata"].get("resourceVersion", ""))
        if same or version == self._judged:
            return
        self._judged = version
        _log.critical(
            "Secret %s holds another key than this operator works with: the next operator would "
            "reach no job that runs; delete that Secret, and this operator puts its own back",
            ROOT_SECRET,
        )

    async def _make(self, key: bytes) -> bool:
        """Make the Secret; False: there is one already."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": ROOT_SECRET, "namespace": self._namespace},
            "type": "holdfast.dev/root-key",
            "immutable": True,
            "data": {_ROOT_FIELD: base64.b64encode(key).decode()},
        }
        return await self._client.make(self._path, body)


def _key_of(secret: Mapping[str, Any]) -> bytes | None:
    """Return the key in a Secret; None: it has no valid one."""
    text = (secret.get("data") or {}).get(_ROOT_FIELD) or ""
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return key if len(key) >= ROOT_KEY_BYTES else None


def _runs(job: Mapping[str, Any]) -> bool:
    """Return True if a job has a master, or had one that will get a successor."""
    status = job.get("status") or {}
    return bool(status.get("masterPods")) and "completionTime" not in status
