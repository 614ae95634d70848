"""Leader election: the replica that holds a Lease works; one that loses it exits.

The client library's own election cannot make its Lease. It lets a refused connection escape while
its leader runs on, and has no deadline for a request. So it is not used.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from typing import Any, Final

from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError

_log = logging.getLogger(__name__)
_LEASE_SECONDS: Final = 15
"""Time without a renewal after which another replica takes over."""
_RENEW_SECONDS: Final = 10.0
"""Time without a renewal after which the holder gives up: sooner than another takes over."""
_RETRY_SECONDS: Final = 2.0
"""Time between two tries."""


class LeaseLostError(RuntimeError):
    """Another replica may work now; this one must not."""


class Election:
    """The Lease of one operator installation."""

    def __init__(self, client: KubeClient, namespace: str, name: str, identity: str) -> None:
        """Prepare; nothing is requested yet.

        Args:
            client: Used for nothing else: a renewal must not queue behind the pods of many jobs.
            namespace: Namespace of the Lease.
            name: Name of the Lease: the replicas of one installation share it, and no other does.
            identity: Name of this replica.
        """
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", time.monotonic())
        """Another holder's Lease as last seen, and its local time: clocks are not compared."""
        self.stands_by = False
        """True: another replica held the Lease at the last look, and this one waits for it."""

    async def win(self) -> None:
        """Wait until the Lease is held."""
        while True:
            try:
                if await self._try():
                    _log.info("%s leads", self._identity)
                    return
            except KubeError as error:
                _log.warning("election: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def keep(self) -> None:
        """Renew the Lease until cancelled; raises LeaseLostError."""
        renewed = time.monotonic()
        while time.monotonic() - renewed < _RENEW_SECONDS:
            await asyncio.sleep(_RETRY_SECONDS)
            try:
                async with asyncio.timeout(_RENEW_SECONDS - (time.monotonic() - renewed)):
                    if not await self._try():
                        raise LeaseLostError("another replica holds the Lease")
                renewed = time.monotonic()
            except (KubeError, TimeoutError) as error:
                _log.warning("election: the Lease was not renewed: %s", error)
        raise LeaseLostError(f"the Lease could not be renewed for {_RENEW_SECONDS} s")

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
        lease = await self._client.find(f"{self._path}/{self._name}")
        if lease is None:
            return await self._write("POST", self._path, _fresh(self._name, self._identity))
        spec = lease["spec"]
        holder = spec.get("holderIdentity") or ""
        self.stands_by = holder not in {"", self._identity} and not self._expired(spec)
        if self.stands_by:
            return False
        if holder != self._identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _now()
        spec.update(
            holderIdentity=self._identity, leaseDurationSeconds=_LEASE_SECONDS, renewTime=_now()
        )
        return await self._write("PUT", f"{self._path}/{self._name}", lease)

    def _expired(self, spec: dict[str, Any]) -> bool:
        mark = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
        if mark != self._seen[0]:
            self._seen = (mark, time.monotonic())
        lasts = int(spec.get("leaseDurationSeconds") or _LEASE_SECONDS)
        return time.monotonic() - self._seen[1] > lasts

    async def _write(self, method: str, path: str, lease: dict[str, Any]) -> bool:
        try:
            await self._client.call(method, path, lease)
        except ApiRefusedError as error:
            if error.code == 409:  # another replica was faster
                return False
            raise
        return True


def _fresh(name: str, identity: str) -> dict[str, Any]:
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": _LEASE_SECONDS,
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
