"""An administrator's defaults for job masters' pods, under each job's own wishes. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast_operator.pods.template import main_container

_SHAPES: Final[Mapping[str, type]] = {
    "annotations": dict,
    "labels": dict,
    "imagePullSecrets": list,
    "nodeSelector": dict,
    "tolerations": list,
    "priorityClassName": str,
    "resources": dict,
}
_OF_THE_POD: Final = ("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName")


@dataclasses.dataclass(frozen=True, slots=True)
class MasterDefaults:
    """Fields that a master's pod has where its job's `spec.master.template` does not set them."""

    text: dataclasses.InitVar[str] = "{}"
    """A JSON object."""
    fields: Mapping[str, Any] = dataclasses.field(init=False)

    def __post_init__(self, text: str) -> None:
        """Read the text.

        Raises:
            ValueError: It is no JSON object of such fields.
        """
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")  # noqa: TRY004 - as `int` does
        for name, value in found.items():
            shape = _SHAPES.get(name)
            if shape is None or (value is not None and not isinstance(value, shape)):
                known = ", ".join(f"{one} ({shape.__name__})" for one, shape in _SHAPES.items())
                raise ValueError(f"{name} is {value!r}; known are {known}")
        kept = {name: value for name, value in found.items() if value}
        object.__setattr__(self, "fields", kept)

    def under(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return a master's pod template with these fields where it has none of its own.

        Resources belong to its main container. A template that sets any keeps just those.
        """
        spec = dict(template["spec"])
        for name in _OF_THE_POD:
            if name in self.fields and not spec.get(name):
                spec[name] = self.fields[name]
        containers = [dict(one) for one in spec["containers"]]
        main = containers[main_container(spec)]
        if "resources" in self.fields and not main.get("resources"):
            main["resources"] = self.fields["resources"]
        spec["containers"] = containers
        metadata = dict(template.get("metadata") or {})
        for name in ("labels", "annotations"):
            if name in self.fields:
                metadata[name] = {**self.fields[name], **(metadata.get(name) or {})}
        return {**template, "metadata": metadata, "spec": spec}
