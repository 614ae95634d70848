"""Template revision of the running pods, kept while the spec may differ. Pure.

An edit of a pod template applies at the next full restart: a world of different pods is not what
the user asked for. The templates in force are kept in a ControllerRevision of the job.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.pods.names import Owner
from holdfast_operator.spec.job import JobSpec

_DIGEST_BYTES: Final = 5
Templates = Mapping[str, Any]
"""The pod templates of one spec: worker, master (or None), extraRoles by name; nprocPerNode."""


def templates_of(spec: JobSpec) -> dict[str, Any]:
    """Return everything of a spec that an edit changes for new pods only."""
    return {
        "worker": spec.worker_template,
        "master": spec.master_template,
        "extraRoles": {role.name: role.template for role in spec.extra_roles},
        "nprocPerNode": spec.nproc_per_node,
    }


def revision_name(job: str, templates: Templates) -> str:
    """Return the same name for the same templates."""
    text = json.dumps(templates, sort_keys=True, separators=(",", ":"))
    return f"{job}-{hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"


def with_templates(spec: JobSpec, templates: Templates) -> JobSpec:
    """Return the spec with these templates in place of its own."""
    roles = templates["extraRoles"]
    return dataclasses.replace(
        spec,
        worker_template=templates["worker"],
        master_template=templates["master"],
        nproc_per_node=templates.get("nprocPerNode", spec.nproc_per_node),
        extra_roles=tuple(
            dataclasses.replace(role, template=roles.get(role.name, role.template))
            for role in spec.extra_roles
        ),
    )


def revision_object(owner: Owner, templates: Templates, generation: int) -> dict[str, Any]:
    """Return the ControllerRevision that keeps the templates."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": owner.metadata(revision_name(owner.name, templates)),
        "revision": generation,
        "data": dict(templates),
    }


@dataclasses.dataclass(slots=True)
class TemplatesInForce:
    """Templates of the running pods, and the newest ones."""

    revision: str = ""
    """Name of the templates in force; empty: not known yet."""
    templates: Templates | None = None
    """Those templates."""
    newest: tuple[int, str] = (0, "")
    """Generation of the spec, and the name of its templates."""
    _last: tuple[JobSpec, JobSpec] | None = None
    """A spec and what `of` returned for it: each look asks a dozen times."""

    def checked(self, generation: int) -> bool:
        """Return True if the templates of this generation were checked."""
        return self.newest[0] == generation

    def wanted(self, job: str, spec: JobSpec, generation: int) -> str:
        """Return the name of the spec's templates, computed once per generation."""
        if not self.checked(generation):
            self.newest = generation, revision_name(job, templates_of(spec))
        return self.newest[1]

    def put_in_force(self, revision: str, templates: Templates) -> None:
        """Make pods from these templates from now on."""
        self.revision, self.templates = revision, templates
        self._last = None

    def of(self, spec: JobSpec) -> JobSpec:
        """Return the spec with the templates in force in place of its own."""
        if self.templates is None:
            return spec
        if self._last is None or self._last[0] is not spec:
            same = templates_of(spec) == self.templates
            self._last = spec, spec if same else with_templates(spec, self.templates)
        return self._last[1]
