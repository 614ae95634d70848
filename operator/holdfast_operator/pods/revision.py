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
