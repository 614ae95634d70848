"""Pod templates in force: those of the running pods, or the newest if none runs.

Before a pod of new templates is made, the API server is asked whether it accepts them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast_operator.kube.client import YAML, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError
from holdfast_operator.owned_resources import check_owner
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.pods import MASTER_SLOT, WORKER, PodSlot, Role
from holdfast_operator.pods import memory
from holdfast_operator.pods.pod import master_pod, worker_pod
from holdfast_operator.pods.revision import revision_object, templates_of
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.spec.job import JobSpec
from holdfast_operator.state.job_state import JobState

_log = logging.getLogger(__name__)
_MISSHAPEN: Final = (AttributeError, TypeError, KeyError, ValueError)
"""Errors from a template with a map in place of a list, and the like: the CRD lets it pass."""


class Revisions:
    """Templates in force, of all jobs."""

    def __init__(self, client: KubeClient, settings: OperatorSettings) -> None:
        self._client = client
        self._settings = settings

    async def settle(self, state: JobState) -> str:
        """Put the right templates in force; return the API server's refusal of new ones."""
        wanted = state.wanted_revision
        if not state.templates.revision:
            await self._find(state, wanted)
        before = state.templates.revision
        if before == wanted or (before and state.runs):
            return ""
        fault = await self._try(state)
        if fault:
            return fault
        await self._make(state, wanted)
        if before:
            _log.info("job %s: new templates are in force: %s", state.key, wanted)
            await self._delete(state, before)
        return ""

    async def _find(self, state: JobState, wanted: str) -> None:
        """Take over the templates that an operator before this one put in force."""
        known = state.status.revision
        if known == wanted:
            state.templates.put_in_force(known, templates_of(state.job.spec))
        elif known:
            found = await self._client.find(f"{state.owner.revisions}/{known}")
            if found is not None:
                state.templates.put_in_force(known, found["data"])

    async def _make(self, state: JobState, name: str) -> None:
        templates = templates_of(state.job.spec)
        path = state.owner.revisions
        body = revision_object(state.owner, templates, state.generation)
        if not await self._client.make(path, body, YAML):
            check_owner(state.owner, await self._client.call("GET", f"{path}/{name}"))
        state.templates.put_in_force(name, templates)

    async def _delete(self, state: JobState, name: str) -> None:
        try:
            await self._client.call("DELETE", f"{state.owner.revisions}/{name}")
        except ApiRefusedError as error:
            if not error.is_gone:
                raise

    async def _try(self, state: JobState) -> str:
        """Have the API server check a pod of each role; return its refusal of one."""
        again = await self._client.starts_again()
        for where, template, slot in _templates(state.job.spec):
            fault = ""
            try:
                pod = self._sample(state, slot, starts_again=again)
                fault = memory.fault(template) if again and slot.role is Role.WORKER else ""
            except _MISSHAPEN as error:
                # The API server's text is better if it gets the bare template.
                fault = f"it has not the shape of a pod template ({error})"
                metadata = state.owner.metadata(slot.pod_name(state.owner.name, 0))
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
                pod["spec"] = template["spec"]
            try:
                path = f"{state.owner.core('pods')}?dryRun=All"
                await self._client.call("POST", path, pod)
            except ApiRefusedError as error:
                if error.is_invalid:
                    return f"{where}: {error.message}"
                # A quota or a policy refuses a template that is right: the pods will show it.
                if not (error.exists or error.is_admission):
                    raise
            if fault:
                return f"{where}: {fault}"
        return ""

    def _sample(self, state: JobState, slot: PodSlot, *, starts_again: bool) -> dict[str, Any]:
        """Return the first pod of a place, as it would be made."""
        source = state.source(self._settings, newest=True)
        source = dataclasses.replace(source, starts_again=starts_again)
        name = slot.pod_name(state.owner.name, 0)
        first = CreatePod(slot=slot, incarnation=0, name=name, avoid_nodes=("none",), reason="")
        return master_pod(source, first, 1) if slot == MASTER_SLOT else worker_pod(source, first)


def _templates(spec: JobSpec) -> Iterator[tuple[str, Mapping[str, Any], PodSlot]]:
    """Yield each template's path in the spec, the template, and its first place."""
    yield "spec.worker.template", spec.worker_template, PodSlot(WORKER, 0)
    for role in spec.extra_roles:
        yield f"spec.extraRoles[{role.name}].template", role.template, PodSlot(role.name, 0)
    if spec.master_template is not None:
        yield "spec.master.template", spec.master_template, MASTER_SLOT
