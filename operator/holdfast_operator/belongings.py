"""What a job has all its life beside its pods: Services, certificates, a disruption budget.

Made once, looked after for as long as the job goes on: a Secret that somebody deleted comes back,
and certificates are renewed before they end. What is in a Secret is `credentials`' affair.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.build.names import KEYS_PER_SECRET, Owner, budget, services
from holdfast_operator.credentials import LABEL_RANKS, RENEW_AFTER, is_whole
from holdfast_operator.job_keeper import JobKeeper
from holdfast_operator.kube import paths
from holdfast_operator.kube.client import APPLY, MANAGER, MERGE, KubeClient
from holdfast_operator.kube.failures import NotYetError, RefusedError, TakenError
from holdfast_operator.kube.pods import PodRecord
from holdfast_operator.plan.pods import Role, Slot
from holdfast_wire import keys
from holdfast_wire.messages import PodPhase

_log = logging.getLogger(__name__)
_HURRY_S: Final = 10.0
"""Between two looks at them while a pod that has its node does not begin, or a master is not
reached: it may be for want of one of them."""

Make = Callable[[], Awaitable[dict[str, Any]]]


class Belongings:
    """Keeps them for all jobs."""

    def __init__(self, client: KubeClient, check_s: float) -> None:
        """Make a keeper of nothing yet.

        Args:
            client: The API server.
            check_s: How often the Secrets of a job are looked at without a cause, s.
        """
        self._client = client
        self._check_s = check_s

    async def prepare(self, keeper: JobKeeper) -> None:
        """Make what a job has from its beginning; what exists stays."""
        for one in services(keeper.owner, keeper.spec.master_port):
            await self._make(keeper, paths.core(keeper.owner, "services"), one)
        for secret in await keeper.credentials.fixed_secrets():
            await self._make(keeper, paths.core(keeper.owner, "secrets"), secret)

    async def keep_budget(self, keeper: JobKeeper) -> None:
        """Have the PodDisruptionBudget that the spec asks for, and none where it asks for none."""
        least = keeper.spec.size.least if keeper.spec.budget_for_drains else 0
        if least == keeper.budget:
            return
        path = f"{paths.budgets(keeper.owner)}/{keeper.owner.budget}"
        found = await self._look(path)
        try:
            if least:
                await self._apply_budget(keeper.owner, path, found, least)
            elif found is not None and _is_owned(keeper.owner, found):
                body = _only(found["metadata"]["uid"])
                await self._client.call("DELETE", path, body)
        except (TakenError, RefusedError) as error:
            if isinstance(error, RefusedError) and not (error.is_gone or error.is_admission):
                raise
            # The job runs without it; the next look after the job's belongings tries again.
            _log.warning("job %s: no PodDisruptionBudget: %s", keeper.key, error)
        keeper.budget = least

    async def _apply_budget(
        self, owner: Owner, path: str, found: dict[str, Any] | None, least: int
    ) -> None:
        if found is not None:
            check_owner(owner, found)
            if found["spec"].get("minAvailable") == least:
                return
        body = budget(owner, least)
        await self._client.call("PATCH", f"{path}?fieldManager={MANAGER}&force=true", body, APPLY)

    async def _look(self, path: str) -> dict[str, Any] | None:
        """An object; None: it is not there."""
        try:
            found: dict[str, Any] = await self._client.call("GET", path)
        except RefusedError as error:
            if not error.is_gone:
                raise
            return None
        return found

    async def certify(self, keeper: JobKeeper, slot: Slot) -> None:
        """See that a worker's key pair is in its Secret before its pod is made."""
        if slot.index in keeper.certified:
            return
        secret = await keeper.credentials.worker_secret(slot.index, _most(keeper))
        path = paths.core(keeper.owner, "secrets")
        if not await self._make(keeper, path, secret):
            await self._complete(f"{path}/{secret['metadata']['name']}", secret)
        first = slot.index - slot.index % KEYS_PER_SECRET
        ranks = int(secret["metadata"]["labels"][LABEL_RANKS])
        keeper.certified.update(range(first, first + ranks))

    async def look_after(self, keeper: JobKeeper, now: float) -> float:
        """Bring back what is gone of Services, Secrets and budget, renew what is due.

        Returns:
            Seconds until it is to be done again.

        Raises:
            KubeError: something could not be done now.
        """
        hurry = any(_may_lack(pod, keeper) for pod in keeper.pods())
        if not keeper.checked_at:  # they were made, or found, a moment ago
            keeper.checked_at = now
        if not hurry:
            keeper.hurry_s = _HURRY_S
        due = keeper.checked_at + (min(keeper.hurry_s, self._check_s) if hurry else self._check_s)
        if keeper.renew_at is not None:
            due = min(due, max(keeper.renew_at, keeper.checked_at + 1.0))
        if now < due:
            return due - now
        keeper.checked_at = now
        if hurry:
            keeper.hurry_s *= 2  # it was not for want of these: other jobs need the requests, too
        else:
            keeper.budget = None
        await self._keep_services(keeper)
        renewals = [await self._check(keeper, name, make, now) for name, make in _secrets(keeper)]
        keeper.renew_at = min(renewals)
        return max(1.0, min(self._check_s, keeper.renew_at - now))

    async def _keep_services(self, keeper: JobKeeper) -> None:
        path = paths.core(keeper.owner, "services")
        for one in services(keeper.owner, keeper.spec.master_port):
            name = one["metadata"]["name"]
            found = await self._look(f"{path}/{name}")
            if found is None:
                await self._make(keeper, path, one)
                _log.warning("job %s: Service %s was gone, and is made again", keeper.key, name)
            elif not _is_owned(keeper.owner, found):
                _log.warning("job %s: Service %s is not its own any more", keeper.key, name)

    async def _check(self, keeper: JobKeeper, name: str, make: Make, now: float) -> float:
        """See to one Secret; return when it has to be renewed, Unix time, s."""
        path = paths.core(keeper.owner, "secrets")
        found = await self._look(f"{path}/{name}")
        if found is None:
            found = await make()
            await self._make(keeper, path, found)
            _log.warning("job %s: Secret %s was gone, and is made again", keeper.key, name)
        if not _is_owned(keeper.owner, found):
            _log.warning("job %s: Secret %s is not its own any more", keeper.key, name)
            return now + self._check_s
        renew_at = _renewal(found)
        if now < renew_at and is_whole(found):
            return renew_at
        fresh = await make()
        metadata = {key: fresh["metadata"][key] for key in ("annotations", "labels")}
        body = {"metadata": metadata, "data": fresh["data"]}
        await self._client.call("PATCH", f"{path}/{name}", body, MERGE)
        _log.info("job %s: the certificates in Secret %s are new", keeper.key, name)
        return _renewal(fresh)

    async def _make(self, keeper: JobKeeper, path: str, body: dict[str, Any]) -> bool:
        """Make an object; False: it exists already, and stays as it is.

        Raises:
            NotYetError: it is an earlier job's of the same name, and about to go with that.
            TakenError: it is somebody else's.
        """
        try:
            await self._client.call("POST", path, body)
        except RefusedError as error:
            if not error.exists:
                raise
        else:
            return True
        check_owner(
            keeper.owner, await self._client.call("GET", f"{path}/{body['metadata']['name']}")
        )
        return False

    async def _complete(self, path: str, secret: dict[str, Any]) -> None:
        """Add the key pairs that an existing Secret lacks; those that pods may use stay."""
        found = await self._client.call("GET", path)
        there = found.get("data") or {}
        missing = {file: data for file, data in secret["data"].items() if file not in there}
        if missing:
            labels = {LABEL_RANKS: secret["metadata"]["labels"][LABEL_RANKS]}
            body = {"metadata": {"labels": labels}, "data": missing}
            await self._client.call("PATCH", path, body, MERGE)


def _may_lack(pod: PodRecord, keeper: JobKeeper) -> bool:
    """Whether something that a pod needs may be gone: it does not begin, or cannot be reached."""
    if pod.phase is PodPhase.PENDING:
        return bool(pod.node)
    runs = pod.phase is PodPhase.RUNNING and pod.slot.role is Role.MASTER
    return runs and not keeper.view.connected


def _most(keeper: JobKeeper) -> int:
    """Ranks that the job may come to have."""
    return max(keeper.spec.size.most, keeper.spec.replicas) + keeper.spec.standbys


def _secrets(keeper: JobKeeper) -> list[tuple[str, Make]]:
    """Every Secret that the job should have now, and how to make it anew."""
    owner, credentials = keeper.owner, keeper.credentials
    made: list[tuple[str, Make]] = [
        (owner.master_secret, credentials.master_secret),
        (owner.user_secret, credentials.user_secret),
    ]
    ranks = {pod.slot.index for pod in keeper.pods() if pod.slot.role is Role.WORKER}
    most = max([_most(keeper), *(rank + 1 for rank in ranks | keeper.certified)])
    blocks = {rank // KEYS_PER_SECRET for rank in ranks | keeper.certified}
    for block in sorted(blocks):
        first = block * KEYS_PER_SECRET

        async def make(first: int = first) -> dict[str, Any]:
            return await credentials.worker_secret(first, most)

        made.append((owner.worker_secret(first), make))
    return made


def _renewal(secret: dict[str, Any]) -> float:
    """When the certificates in a Secret are to be renewed; one that does not say so: at once."""
    text = (secret["metadata"].get("annotations") or {}).get(RENEW_AFTER) or ""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # somebody has edited it
        return 0.0


def _is_owned(owner: Owner, found: Mapping[str, Any]) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return any(one["uid"] == owner.uid for one in owners)


def _only(uid: str) -> dict[str, Any]:
    """Options of a deletion of this very object."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}


def check_owner(owner: Owner, found: Mapping[str, Any]) -> None:
    """See that an object that exists already is this job's.

    Raises:
        NotYetError: it is an earlier job's of the same name, and about to go with that.
        TakenError: it is somebody else's.
    """
    if _is_owned(owner, found):
        return
    metadata = found["metadata"]
    what = f"{found.get('kind', 'object')} {metadata['name']}"
    owners = metadata.get("ownerReferences") or ()
    if any((one["kind"], one["name"]) == (keys.KIND, owner.name) for one in owners):
        raise NotYetError(f"{what} is an earlier job's of this name, and goes by itself")
    raise TakenError(
        f"{what} exists and is not this job's; delete it, or give the job another name"
    )
