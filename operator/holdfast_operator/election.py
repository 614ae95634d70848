"""Which of several replicas works: the one that holds a Lease. Whoever loses it exits.

The client library's own election cannot make its Lease, lets a refused connection escape while its
leader runs on, and knows no deadline for a request; hence these lines.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from typing import Any, Final

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.failures import KubeError, RefusedError

_log = logging.getLogger(__name__)
_LEASE_S: Final = 15
"""After this long without a renewal another replica takes over."""
_RENEW_S: Final = 10.0
"""After this long without a success the holder gives up: sooner than another takes over."""
_RETRY_S: Final = 2.0
"""Between two tries."""


class LeaseLostError(RuntimeError):
    """Another replica may work now; this one must not."""


class Election:
    """The Lease of one operator installation."""

    def __init__(self, client: KubeClient, namespace: str, name: str, identity: str) -> None:
        """Take part in the election; nothing is asked yet.

        Args:
            client: Used by nothing else: a renewal must not queue behind the pods of many jobs.
            namespace: Where the Lease is.
            name: Of the Lease: what the replicas of one installation share, and no other does.
            identity: Of this replica.
        """
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", time.monotonic())
        """What of another holder's Lease was seen last, and since when: no clock is compared."""

    async def win(self) -> None:
        """Wait until the Lease is held."""
        while True:
            try:
                if await self._try():
                    _log.info("%s leads", self._identity)
                    return
            except KubeError as error:
                _log.warning("election: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def keep(self) -> None:
        """Renew the Lease for ever; raises LeaseLostError."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < _RENEW_S:
            await asyncio.sleep(_RETRY_S)
            try:
                async with asyncio.timeout(_RENEW_S - (time.monotonic() - renewed)):
                    if not await self._try():
                        raise LeaseLostError("another replica holds the Lease")
                renewed = time.monotonic()
            except (KubeError, TimeoutError) as error:
                _log.warning("election: the Lease was not renewed: %s", error)
        raise LeaseLostError(f"the Lease could not be renewed for {_RENEW_S} s")

    async def give_up(self) -> None:
        """Let the next replica begin at once."""
        try:
            lease = await self._client.call("GET", f"{self._path}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                await self._client.call("PUT", f"{self._path}/{self._name}", lease)
        except KubeError as error:
            _log.info("election: %s", error)

    async def _try(self) -> bool:
        try:
            lease = await self._client.call("GET", f"{self._path}/{self._name}")
        except RefusedError as error:
            if error.code != 404:
                raise
            return await self._write("POST", self._path, _fresh(self._name, self._identity))
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        if holder not in {"", self._identity} and not self._expired(spec):
            return False
        if holder != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _now()
        spec.update(holderIdentity=self._identity, leaseDurationSeconds=_LEASE_S, renewTime=_now())
        return await self._write("PUT", f"{self._path}/{self._name}", lease)

    def _expired(self, spec: dict[str, Any]) -> bool:
        mark = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
        if mark != self._seen[0]:
            self._seen = (mark, time.monotonic())
        lasts = int(spec.get("leaseDurationSeconds") or _LEASE_S)
        return time.monotonic() - self._seen[1] > lasts

    async def _write(self, method: str, path: str, lease: dict[str, Any]) -> bool:
        try:
            await self._client.call(method, path, lease)
        except RefusedError as error:
            if error.code == 409:  # somebody was faster
                return False
            raise
        return True


def _fresh(name: str, identity: str) -> dict[str, Any]:
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": _LEASE_S,
        "acquireTime": _now(),
        "renewTime": _now(),
        "leaseTransitions": 0,
    }
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": spec,
    }


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
