"""Pod templates of a job: those in force, and those that its spec has now."""

from __future__ import annotations

import dataclasses

from holdfast_operator.pods.revision import Templates, revision_name, templates_of, with_templates
from holdfast_operator.spec.job import JobSpec


@dataclasses.dataclass(slots=True)
class TemplatesInForce:
    """Templates of the running pods, and the newest ones."""

    revision: str = ""
    """Name of the templates in force; empty: not known yet."""
    templates: Templates | None = None
    """Those templates."""
    newest: tuple[int, str] = (0, "")
    """Generation of the spec, and the name of its templates."""

    def checked(self, generation: int) -> bool:
        """Return whether the templates of this generation were checked."""
        return self.newest[0] == generation

    def wanted(self, job: str, spec: JobSpec, generation: int) -> str:
        """Return the name of the spec's templates, computed once per generation."""
        if not self.checked(generation):
            self.newest = generation, revision_name(job, templates_of(spec))
        return self.newest[1]

    def put_in_force(self, revision: str, templates: Templates) -> None:
        """Make pods from these templates from now on."""
        self.revision, self.templates = revision, templates

    def of(self, spec: JobSpec) -> JobSpec:
        """Return the spec with the templates in force in place of its own."""
        return spec if self.templates is None else with_templates(spec, self.templates)
