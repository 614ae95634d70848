"""Keeps the PodGroup of each job that asks for one, where the cluster has a scheduler for it.

A group is there while workers may be: a suspended job has none, so that it begins anew with what
its spec says then. While workers live only the size of their group changes.
"""

from __future__ import annotations

import dataclasses
import http
import logging
import time
from typing import Any, Final

from holdfast_operator.kube.client import MERGE, KubeClient, only
from holdfast_operator.kube.errors import ApiRefusedError, KubeError, NotYetError, TakenError
from holdfast_operator.owned_resources import check_owner, is_owned
from holdfast_operator.plan.pods import Role
from holdfast_operator.pods.gang import (
    AUTO,
    BACKENDS,
    NONE,
    Gang,
    GangBackend,
    Grouping,
    in_force,
)
from holdfast_operator.state.job_state import JobState

_log = logging.getLogger(__name__)
_DISCOVERY_SECONDS: Final = 30.0
"""Age at which it is asked again what the cluster serves."""
_GOING_SECONDS: Final = 1.0
"""Time between two looks for a group that is going."""


class Gangs:
    """The groups of all jobs."""

    def __init__(self, client: KubeClient) -> None:
        """Know of no scheduler yet."""
        self._client = client
        self._apis: frozenset[str] = frozenset()
        self._asked_at = -_DISCOVERY_SECONDS

    async def settle(self, state: JobState) -> float | None:
        """Choose how a job's next workers are scheduled, and make, change or delete its group.

        What cannot be done now is a fault of the job's grouping: living workers do without it, and
        their successors are made. No first worker is.

        Returns:
            Seconds until the next look; None: none is needed.
        """
        try:
            return await self._settle(state)
        except KubeError as error:
            _log.warning("job %s: its PodGroup: %s", state.key, error)
            fault, alone = f"its PodGroup: {error}", not _workers(state)
            state.groups(dataclasses.replace(state.grouping, fault=fault, blocked=alone))
            return _GOING_SECONDS if isinstance(error, NotYetError) else _DISCOVERY_SECONDS

    async def _settle(self, state: JobState) -> float | None:
        wanted = state.asked.gang
        living = _workers(state)
        if living or not state.expectations.open:  # those that were just made do not show yet
            begins = not living and wanted != NONE and not state.spec.suspend
            apis = await self._discover() if begins else frozenset[str]()
            state.groups(in_force(NONE if state.spec.suspend else wanted, living, apis))
        backend = state.grouping.backend
        await self._leave(state, backend)
        if backend is None:
            return _DISCOVERY_SECONDS if state.grouping.blocked else None
        fault = await self._keep(state, backend)
        if fault and not living:
            state.groups(Grouping(fault=fault, blocked=wanted != AUTO))
        elif fault:
            state.groups(Grouping(backend, fault))
        return _DISCOVERY_SECONDS if fault else None

    async def _leave(self, state: JobState, backend: GangBackend | None) -> None:
        """Delete the groups that the next workers are not in.

        An operator before this one may have left that of a suspended job.
        """
        before = state.credentials.group
        if before is not None:
            names = {before[0]} - {""}
        elif backend is None and state.spec.suspend and state.asked.gang != NONE:
            apis = await self._discover()
            names = {one.name for one in BACKENDS if one.api in apis}
        else:
            return
        for name in names - {backend.name if backend is not None else ""}:
            await self._delete(state, name)
        if before is None:
            state.credentials.keeps_group("", 0)

    async def _discover(self) -> frozenset[str]:
        """Return the group versions with a PodGroup."""
        now = time.monotonic()
        if now - self._asked_at >= _DISCOVERY_SECONDS:
            found = [one.api for one in BACKENDS if await self._serves(one.api)]
            self._apis, self._asked_at = frozenset(found), now
        return self._apis

    async def _serves(self, api: str) -> bool:
        try:
            found = await self._client.call("GET", f"/apis/{api}")
        except ApiRefusedError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise
            return False
        return any(one["name"] == "podgroups" for one in found["resources"])

    async def _keep(self, state: JobState, backend: GangBackend) -> str:
        """Make the group or change its size; return what forbids it."""
        least = state.spec.size.least
        if state.credentials.group == (backend.name, least):
            return ""
        try:
            await self._apply(state, backend, least)
        except (TakenError, ApiRefusedError) as error:
            if isinstance(error, ApiRefusedError) and not _forbids(error):
                raise
            _log.warning("job %s: no PodGroup: %s", state.key, error)
            return f"the PodGroup of {backend.api} cannot be made or changed: {error}"
        state.credentials.keeps_group(backend.name, least)
        return ""

    async def _apply(self, state: JobState, backend: GangBackend, least: int) -> None:
        owner, where = state.owner, backend.path(state.owner)
        found = await self._client.find(f"{where}/{owner.gang}")
        if found is None:
            await self._client.make(where, backend.body(_gang(state, least)))
            _log.info("job %s: made the PodGroup %s of %s", state.key, owner.gang, backend.api)
            return
        check_owner(owner, found)
        if "deletionTimestamp" in found["metadata"] and not state.runs:
            raise NotYetError(f"PodGroup {owner.gang} is of the last start, and goes by itself")
        size = backend.size(least)
        if not size.items() <= found["spec"].items():
            await self._client.call("PATCH", f"{where}/{owner.gang}", {"spec": size}, MERGE)

    async def _delete(self, state: JobState, name: str) -> None:
        backend = next(one for one in BACKENDS if one.name == name)
        path = f"{backend.path(state.owner)}/{state.owner.gang}"
        found = await self._client.find(path)
        if found is not None and is_owned(state.owner, found):
            await self._client.call("DELETE", path, only(found["metadata"]["uid"]))
        state.credentials.keeps_group("", 0)


def _workers(state: JobState) -> list[str]:
    """Return the backend of each living worker; empty text: it is in no group."""
    return [pod.gang for pod in state.pods() if pod.slot.role is Role.WORKER and pod.live]


def _forbids(error: ApiRefusedError) -> bool:
    """Return True if a rule stands against the group, or its kind is not served any more."""
    return error.is_admission or error.is_invalid or error.code == http.HTTPStatus.NOT_FOUND


def _gang(state: JobState, least: int) -> Gang:
    spec: dict[str, Any] = dict(state.spec.worker_template["spec"])
    of_job = state.body["spec"]["scheduling"].get("priorityClassName")
    topology = state.spec.topology
    return Gang(
        owner=state.owner,
        least=least,
        timeout_s=state.spec.gang_timeout_s,
        priority_class=spec.get("priorityClassName") or of_job or "",
        within=topology.key if topology is not None and topology.required else "",
    )
