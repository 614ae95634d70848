"""Values at the edge of every bound of the CRD and one beyond it, made from the CRD itself.

For a real API server; the cases of the CRD's own rules are in `rule_cases`.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast_operator.spec.problems import Path
from holdfast_operator.spec.schema import FieldKind, Schema, parse_crd
from jobs.job_files import CRD, TEMPLATE, job
from jobs.placed_fields import ITEMS, fields, put

_CONDITION: Final = {
    "status": "True",
    "reason": "R",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
_LISTS: Final[dict[str, Callable[[int], Any]]] = {
    "spec.failurePolicy.rules.0.onExitCodes.values": lambda at: at,
    "spec.extraRoles": lambda at: {"name": f"e{at}", "template": TEMPLATE},
    "spec.podTemplateOverrides": lambda at: {"manager": f"m{at}"},
    "spec.podTemplateOverrides.0.schedulingGates": lambda at: {"name": f"g{at}"},
    "spec.podTemplateOverrides.0.tolerations": lambda at: {"key": f"t{at}"},
    **{
        f"spec.{role}.template.spec.containers": lambda at: {"name": f"c{at}", "image": "x"}
        for role in ("master", "worker", "extraRoles.0")
    },
    "status.budgets": lambda at: {"name": f"b{at}"},
    "status.roles": lambda at: {"name": f"r{at}"},
    "status.excludedNodes": lambda at: f"n{at}",
    "status.raisedMemory": lambda at: {
        "nodeRank": at,
        "tooSmall": "1Mi",
        "limit": "2Mi",
        "exhausted": False,
    },
    "status.conditions": lambda at: {"type": f"C{at}", **_CONDITION},
}
"""How the items of a list that may not repeat differ."""
_WITH: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "spec.minReplicas": lambda value: {"replicas": value},
    "spec.maxReplicas": lambda value: {"replicas": value},
    "spec.nodeUnit": lambda value: {"replicas": value},
    "spec.replicaPolicy.nodesPerReplica": lambda value: {"replicas": value},
    "spec.localSGD.replicaNodes": lambda value: {"replicas": value},
    "spec.failurePolicy.memory.raisePercent": lambda _: {"failurePolicy__memory__maxMemory": "1Gi"},
    "spec.failurePolicy.memory.maxMemory": lambda _: {"failurePolicy__memory__raisePercent": 1},
    "spec.health.straggler.votes": lambda _: {"health__straggler__votesOutOf": 100},
    "spec.health.straggler.votesOutOf": lambda _: {"health__straggler__votes": 1},
    "spec.master.journal.mode": lambda value: (
        {"master__journal__claimName": "c"} if value == "PersistentVolumeClaim" else {}
    ),
    "spec.master.journal.claimName": lambda _: {"master__journal__mode": "PersistentVolumeClaim"},
    "spec.failurePolicy.rules.0.onExitCodes.containerName": lambda value: {
        "worker__template__spec__containers": [{"name": value}]
    },
    "spec.scheduling.topology.mode": lambda _: {"scheduling__topology__key": "zone"},
    **{
        f"spec.master.template.metadata.{field}": lambda _: {"master__template": TEMPLATE}
        for field in ("labels", "labels.key", "annotations", "annotations.key")
    },
    "spec.podTemplateOverrides.0.role": lambda value: {
        "extraRoles": [{"name": value, "template": TEMPLATE}]
    },
}
"""What else a job needs so that a value breaks no rule, and no required field is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """One value for one field."""

    path: Path
    bound: str
    """The schema's word for what it is at the edge of."""
    value: Any
    refused: str = ""
    """Words of the API server's refusal; empty: it is accepted."""

    @property
    def field(self) -> str:
        """The field as the API server writes it."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    @property
    def name(self) -> str:
        """For people."""
        shown = repr(self.value)
        return f"{self.field} {self.bound} {shown if len(shown) < 40 else f'{shown[:36]}...'}"

    def body(self) -> dict[str, Any]:
        """A job with the value."""
        name = ".".join(map(str, self.path))
        made = copy.deepcopy(job(**_WITH.get(name, lambda _: {})(self.value)))
        return put(_dressed(made, self.path), self.path, self.value)


def _dressed(body: dict[str, Any], path: Path) -> dict[str, Any]:
    """With the only matcher of its rule, or the other fields of its item."""
    name = ".".join(map(str, path))
    rule: dict[str, Any] = {"action": "FailJob"}
    if name.startswith("spec.failurePolicy.rules.0.on"):
        matcher = str(path[4])
        if matcher == "onExitCodes":
            rule[matcher] = {"operator": "NotIn", "values": [1]}
        put(body, path[:4], rule)
    elif name.startswith("status.") and 0 in path:
        at = path.index(0)
        put(body, path[: at + 1], _LISTS[".".join(map(str, path[:at]))](0))
    return body


def every_edge() -> list[Edge]:
    """Those of all fields, of the status too."""
    return [
        edge
        for top, part in parse_crd(CRD).schema.properties.items()
        for path, schema in fields(part, (top,))
        for edge in edges(path, schema)
    ]


def edges(path: Path, schema: Schema) -> Iterator[Edge]:
    """Both sides of every bound of one field."""
    for choice in schema.choices:
        yield Edge(path, "enum", choice)
    if schema.choices:
        yield Edge(path, "enum", schema.choices[0].lower(), "Unsupported value")
    if schema.pattern:
        for wrong in ("Ä b", f"{_text(schema, 3)}\n"):
            yield Edge(path, "pattern", wrong, "should match")
        yield Edge(path, "pattern", _text(schema, 3))
    for bound, size, beyond, words in _sizes(schema):
        yield Edge(path, bound, _sized(path, schema, size))
        yield Edge(path, bound, _sized(path, schema, beyond), words)


def _sizes(schema: Schema) -> Iterator[tuple[str, int, int, str]]:
    least, most = _WORDS.get(schema.kind, (("", ""), ("", "")))
    if schema.least is not None:
        yield least[0], schema.least, schema.least - 1, least[1].format(schema.least)
    if schema.most is not None:
        yield most[0], schema.most, schema.most + 1, most[1].format(schema.most)


_WORDS: Final[dict[FieldKind, tuple[tuple[str, str], tuple[str, str]]]] = {
    FieldKind.INTEGER: (
        ("minimum", "should be greater than or equal to {}"),
        ("maximum", "should be less than or equal to {}"),
    ),
    FieldKind.STRING: (
        ("minLength", "should be at least {} chars long"),
        ("maxLength", "Too long: may not be more than {} "),
    ),
    FieldKind.ARRAY: (("minItems", "should have at least {} items"), ("maxItems", "Too many: ")),
    FieldKind.OBJECT: (("", ""), ("maxProperties", "Too many: ")),
}
"""Of each kind the two bounds, and the API server's words beyond them."""


def _sized(path: Path, schema: Schema, size: int) -> Any:
    """A value of that size, in all else right."""
    if schema.kind is FieldKind.INTEGER:
        return size
    if schema.kind is FieldKind.STRING:
        return _text(schema, size)
    if schema.kind is FieldKind.OBJECT:
        return {f"k{at}": "v" for at in range(size)}
    name = ".".join(map(str, path))
    if name in _LISTS:
        return [_LISTS[name](at) for at in range(size)]
    return [copy.deepcopy(ITEMS[name]) for _ in range(size)]


def _text(schema: Schema, size: int) -> str:
    plain = "a" * size
    if schema.pattern and re.search(schema.pattern, "1" * size):
        return "1" * size  # a quantity
    fits = size < len("a/a") or re.search(schema.pattern, plain)
    return plain if fits else "a/" + plain[2:]
