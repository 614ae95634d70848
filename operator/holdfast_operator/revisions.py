"""Which pod templates are in force: those of the running pods, or the newest where none runs.

The API server is asked whether it takes pods of new templates before any is made.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.belongings import check_owner
from holdfast_operator.build import arena
from holdfast_operator.build.pod import master_pod, worker_pod
from holdfast_operator.build.revision import revision_name, revision_object, templates_of
from holdfast_operator.job_keeper import JobKeeper
from holdfast_operator.kube import paths
from holdfast_operator.kube.client import YAML, KubeClient
from holdfast_operator.kube.failures import RefusedError
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.pods import MASTER_SLOT, WORKER, Role, Slot
from holdfast_operator.spec.job import JobSpec

_log = logging.getLogger(__name__)
_MISSHAPEN: Final = (AttributeError, TypeError, KeyError, ValueError)
"""What comes of a template with a map where a list belongs, and the like: the CRD lets it pass."""


class Revisions:
    """The templates in force of all jobs."""

    def __init__(self, client: KubeClient, image: str) -> None:
        self._client = client
        self._image = image

    async def settle(self, keeper: JobKeeper) -> str:
        """Put the right templates in force; return what the API server says against new ones."""
        if keeper.wanted[0] != keeper.generation:
            name = revision_name(keeper.owner.name, templates_of(keeper.job.spec))
            keeper.wanted = keeper.generation, name
        wanted = keeper.wanted[1]
        if not keeper.revision:
            await self._find(keeper, wanted)
        if keeper.revision == wanted or (keeper.revision and keeper.runs):
            return ""
        fault = await self._try(keeper)
        if fault:
            return fault
        before = keeper.revision
        await self._make(keeper, wanted)
        if before:
            _log.info("job %s: new templates are in force: %s", keeper.key, wanted)
            await self._delete(keeper, before)
        return ""

    async def _find(self, keeper: JobKeeper, wanted: str) -> None:
        """Take up what an operator before this one put in force."""
        known = keeper.status.get("templateRevision", "")
        if known == wanted:
            keeper.put_in_force(known, templates_of(keeper.job.spec))
        elif known:
            try:
                found = await self._client.call("GET", f"{paths.revisions(keeper.owner)}/{known}")
            except RefusedError as error:
                if not error.is_gone:
                    raise
            else:
                keeper.put_in_force(known, found["data"])

    async def _make(self, keeper: JobKeeper, name: str) -> None:
        templates = templates_of(keeper.job.spec)
        path = paths.revisions(keeper.owner)
        body = revision_object(keeper.owner, templates, keeper.generation)
        try:
            await self._client.call("POST", path, body, YAML)
        except RefusedError as error:
            if not error.exists:
                raise
            found = await self._client.call("GET", f"{path}/{name}")
            check_owner(keeper.owner, found)
        keeper.put_in_force(name, templates)

    async def _delete(self, keeper: JobKeeper, name: str) -> None:
        try:
            await self._client.call("DELETE", f"{paths.revisions(keeper.owner)}/{name}")
        except RefusedError as error:
            if not error.is_gone:
                raise

    async def _try(self, keeper: JobKeeper) -> str:
        """Have the API server check a pod of each role; return what it says against one."""
        again = await self._client.starts_again()
        for where, template, slot in _templates(keeper.job.spec):
            fault = ""
            try:
                pod = self._sample(keeper, slot, starts_again=again)
                fault = arena.fault(template) if again and slot.role is Role.WORKER else ""
            except _MISSHAPEN as error:
                # The API server has better words for it, if it is asked about the bare template.
                fault = f"it has not the shape of a pod template ({error})"
                metadata = keeper.owner.metadata(slot.pod_name(keeper.owner.name, 0))
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
                pod["spec"] = template["spec"]
            try:
                path = f"{paths.core(keeper.owner, 'pods')}?dryRun=All"
                await self._client.call("POST", path, pod)
            except RefusedError as error:
                if error.is_invalid:
                    return f"{where}: {error.message}"
                # A quota and a policy refuse what is right in itself: the pods will show it.
                if not (error.exists or error.is_admission):
                    raise
            if fault:
                return f"{where}: {fault}"
        return ""

    def _sample(self, keeper: JobKeeper, slot: Slot, *, starts_again: bool) -> dict[str, Any]:
        """The first pod of a place, as it would be made."""
        source = keeper.source(self._image, newest=True)
        source = dataclasses.replace(source, starts_again=starts_again)
        name = slot.pod_name(keeper.owner.name, 0)
        first = CreatePod(slot=slot, incarnation=0, name=name, avoid_nodes=("none",), reason="")
        return master_pod(source, first, 1) if slot == MASTER_SLOT else worker_pod(source, first)


def _templates(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any], Slot]]:
    """Where each template stands in the spec, the template, and its first place."""
    yield "spec.worker.template", spec.worker_template, Slot(WORKER, 0)
    for role in spec.extra_roles:
        yield f"spec.extraRoles[{role.name}].template", role.template, Slot(role.name, 0)
    if spec.master_template is not None:
        yield "spec.master.template", spec.master_template, MASTER_SLOT
