"""Objects that a job owns beside its pods: Services, certificates, a disruption budget.

They are made once and kept for as long as the job goes on: a deleted Secret comes back, and
certificates are renewed in time. Does not belong here: the content of a Secret (`credentials`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast_operator.credentials import LABEL_RANKS, RENEW_AFTER, is_whole
from holdfast_operator.kube.client import APPLY, MANAGER, MERGE, KubeClient, only
from holdfast_operator.kube.errors import ApiRefusedError, NotYetError, TakenError
from holdfast_operator.plan.pods import PodSlot, Role
from holdfast_operator.pods.names import KEYS_PER_SECRET, Owner, budget, policy, services
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.state.job_state import JobState
from holdfast_wire import keys
from holdfast_wire.messages import PodPhase

_log = logging.getLogger(__name__)

Make = Callable[[], dict[str, Any]]


class OwnedResources:
    """Owned objects of all jobs."""

    def __init__(
        self,
        client: KubeClient,
        check_s: float,
        ingress: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin without jobs.

        Args:
            client: The API server.
            check_s: Time after which a job's objects are checked without a cause, s.
            ingress: Rules of each job's NetworkPolicy; None: jobs have none.
        """
        self._client = client
        self._ingress = ingress
        self._check_s = check_s

    async def prepare(self, state: JobState) -> None:
        """Make the objects that a job has from its beginning; existing ones stay."""
        await self._keep_policy(state)
        owner, issuer = state.owner, state.credentials.issuer
        for one in services(owner, state.spec.master_port):
            path = owner.core("services")
            if not await self._finds(state, f"{path}/{one['metadata']['name']}"):
                await self._make(state, path, one)
        secrets = (
            (owner.master_secret, issuer.master_secret),
            (owner.user_secret, issuer.user_secret),
        )
        for name, make in secrets:
            path = owner.core("secrets")
            if not await self._finds(state, f"{path}/{name}"):
                await self._make(state, path, await asyncio.to_thread(make))

    async def keep_budget(self, state: JobState) -> None:
        """Make, change or delete the PodDisruptionBudget, as the spec asks."""
        least = state.spec.size.least if state.spec.budget_for_drains else 0
        if least == state.credentials.budget:
            return
        path = state.owner.budget_path
        found = await self._client.find(path)
        try:
            if least:
                await self._apply_budget(state.owner, path, found, least)
            elif found is not None and is_owned(state.owner, found):
                await self._client.call("DELETE", path, only(found["metadata"]["uid"]))
        except (TakenError, ApiRefusedError) as error:
            if isinstance(error, ApiRefusedError) and not (error.is_gone or error.is_admission):
                raise
            # The job runs without it; the next check of the job's objects tries again.
            _log.warning("job %s: no PodDisruptionBudget: %s", state.key, error)
        state.credentials.keeps_budget(least)

    async def _apply_budget(
        self, owner: Owner, path: str, found: dict[str, Any] | None, least: int
    ) -> None:
        if found is not None:
            check_owner(owner, found)
            if found["spec"].get("minAvailable") == least:
                return
        body = budget(owner, least)
        await self._client.call("PATCH", f"{path}?fieldManager={MANAGER}&force=true", body, APPLY)

    async def certify(self, state: JobState, slot: PodSlot) -> None:
        """Ensure that a worker's key pair is in its Secret before its pod is made."""
        if slot.index in state.credentials.certified:
            return
        make = state.credentials.issuer.worker_secret
        secret = await asyncio.to_thread(make, slot.index, _most(state))
        path = state.owner.core("secrets")
        if not await self._make(state, path, secret):
            await self._complete(f"{path}/{secret['metadata']['name']}", secret)
        first = slot.index - slot.index % KEYS_PER_SECRET
        ranks = int(secret["metadata"]["labels"][LABEL_RANKS])
        state.credentials.certify(range(first, first + ranks))

    async def resync(self, state: JobState, now: float) -> float:
        """Bring back missing Services, Secrets and budget; renew certificates that are due.

        Returns:
            Seconds until the next check.

        Raises:
            KubeError: Something could not be done now.
        """
        hurry = any(_may_lack(pod, state) for pod in state.pods())
        wait = state.credentials.due_in(now, self._check_s, hurry=hurry)
        if wait:
            return wait
        state.credentials.look(now, hurry=hurry)
        await self._keep_policy(state)
        await self._keep_services(state)
        renewals = [await self._check(state, name, make, now) for name, make in _secrets(state)]
        state.credentials.renew(min(renewals))
        return max(1.0, min(self._check_s, min(renewals) - now))

    async def _keep_policy(self, state: JobState) -> None:
        """Make the job's NetworkPolicy, or bring it up to date.

        Raises:
            TakenError: Another one has its name, and the job has not begun: it would be open.
        """
        if self._ingress is None:
            return
        found = await self._client.find(state.owner.policy_path)
        if found is not None and not is_owned(state.owner, found) and state.status.revision:
            what = f"NetworkPolicy {state.owner.policy} is not its own"
            _log.warning("job %s: %s; the job goes on without one", state.key, what)
            return
        if found is not None:
            check_owner(state.owner, found)
        path = f"{state.owner.policy_path}?fieldManager={MANAGER}&force=true"
        await self._client.call("PATCH", path, policy(state.owner, self._ingress), APPLY)

    async def _keep_services(self, state: JobState) -> None:
        path = state.owner.core("services")
        for one in services(state.owner, state.spec.master_port):
            name = one["metadata"]["name"]
            found = await self._client.find(f"{path}/{name}")
            if found is None:
                await self._make(state, path, one)
                _log.warning("job %s: Service %s was gone, and is made again", state.key, name)
            elif not is_owned(state.owner, found):
                _log.warning("job %s: Service %s is not its own any more", state.key, name)

    async def _check(self, state: JobState, name: str, make: Make, now: float) -> float:
        """Check one Secret; return the time to renew it, Unix time, s."""
        path = state.owner.core("secrets")
        found = await self._client.find(f"{path}/{name}")
        if found is None:
            found = await asyncio.to_thread(make)
            await self._make(state, path, found)
            _log.warning("job %s: Secret %s was gone, and is made again", state.key, name)
        if not is_owned(state.owner, found):
            _log.warning("job %s: Secret %s is not its own any more", state.key, name)
            return now + self._check_s
        renew_at = _renewal(found)
        if now < renew_at and is_whole(found):
            return renew_at
        fresh = await asyncio.to_thread(make)
        metadata = {key: fresh["metadata"][key] for key in ("annotations", "labels")}
        body = {"metadata": metadata, "data": fresh["data"]}
        await self._client.call("PATCH", f"{path}/{name}", body, MERGE)
        _log.info("job %s: the certificates in Secret %s are new", state.key, name)
        return _renewal(fresh)

    async def _finds(self, state: JobState, path: str) -> bool:
        """Return True if an operator before this one made an object, and it is still there.

        It is looked for only where the status says that there were pods: one request in place of
        two, and no certificate that is thrown away. Raises as `_make`.
        """
        found = await self._client.find(path) if state.status.revision else None
        if found is not None:
            check_owner(state.owner, found)
        return found is not None

    async def _make(self, state: JobState, path: str, body: dict[str, Any]) -> bool:
        """Make an object; False: it exists already, and stays as it is.

        Raises:
            NotYetError: It belongs to an earlier job of the same name, and goes with that job.
            TakenError: It belongs to another owner.
        """
        if await self._client.make(path, body):
            return True
        found = await self._client.call("GET", f"{path}/{body['metadata']['name']}")
        check_owner(state.owner, found)
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


def _may_lack(pod: PodRecord, state: JobState) -> bool:
    """Return True if an object that a pod needs may be gone: it does not begin or answer."""
    if pod.phase is PodPhase.PENDING:
        return bool(pod.node)
    runs = pod.phase is PodPhase.RUNNING and pod.slot.role is Role.MASTER
    return runs and not state.link.view.connected


def _most(state: JobState) -> int:
    """Return the largest number of ranks that the job may have."""
    return max(state.spec.size.most, state.spec.replicas) + state.spec.standbys


def _secrets(state: JobState) -> list[tuple[str, Make]]:
    """Return every Secret that the job should have now, with the function that makes it."""
    owner, credentials = state.owner, state.credentials.issuer
    certified = state.credentials.certified
    made: list[tuple[str, Make]] = [
        (owner.master_secret, credentials.master_secret),
        (owner.user_secret, credentials.user_secret),
    ]
    ranks = {pod.slot.index for pod in state.pods() if pod.slot.role is Role.WORKER}
    most = max([_most(state), *(rank + 1 for rank in ranks | certified)])
    blocks = {rank // KEYS_PER_SECRET for rank in ranks | certified}
    for block in sorted(blocks):
        first = block * KEYS_PER_SECRET
        make = functools.partial(credentials.worker_secret, first, most)
        made.append((owner.worker_secret(first), make))
    return made


def _renewal(secret: dict[str, Any]) -> float:
    """Return the time to renew a Secret's certificates; 0 (at once) if the Secret names none."""
    text = (secret["metadata"].get("annotations") or {}).get(RENEW_AFTER) or ""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # a person has edited it
        return 0.0


def is_owned(owner: Owner, found: Mapping[str, Any]) -> bool:
    """Return True if an existing object is this job's."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(one["uid"] == owner.uid for one in owners)


def check_owner(owner: Owner, found: Mapping[str, Any]) -> None:
    """Check that an existing object is this job's.

    Raises:
        NotYetError: It belongs to an earlier job of the same name, and goes with that job.
        TakenError: It belongs to another owner.
    """
    if is_owned(owner, found):
        return
    metadata = found["metadata"]
    what = f"{found.get('kind', 'object')} {metadata['name']}"
    owners = metadata.get("ownerReferences") or ()
    if any((one["kind"], one["name"]) == (keys.KIND, owner.name) for one in owners):
        raise NotYetError(f"{what} is an earlier job's of this name, and goes by itself")
    raise TakenError(
        f"{what} exists and is not this job's; delete it, or give the job another name"
    )
