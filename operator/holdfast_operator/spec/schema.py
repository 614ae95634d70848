"""The CRD as a tree of frozen values: the structural schema, its defaults, the rules of each field.

It is read once from the CRD's text. A construct that `structure` would not check is refused, so
that the CRD cannot promise it. Checking objects does not belong here.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from holdfast_operator.spec.problems import Path


class SchemaError(ValueError):
    """This version cannot read the CRD's text: a fault of the build, not of a user."""


class FieldKind(enum.Enum):
    """Type of a field's value."""

    OBJECT = "object"
    ARRAY = "array"
    STRING = "string"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    INT_OR_STRING = "int-or-string"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One of the CRD's own rules: an expression in CEL that must be true."""

    expression: str
    message: str
    message_expression: str = ""
    """CEL that makes a message with the values in it; empty: `message` is all."""
    field: Path = ()
    """The field to blame, relative to the rule's place."""

    @property
    def about_change(self) -> bool:
        """True if it compares with the object before, so that it holds for updates only."""
        return "oldSelf" in self.expression


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One node of the structural schema."""

    kind: FieldKind
    description: str = ""
    properties: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    required: tuple[str, ...] = ()
    values: Schema | None = None
    """Schema of each value, for a mapping with free keys."""
    items: Schema | None = None
    preserve: bool = False
    """True: unknown fields are kept and not looked into."""
    has_default: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    form: str = ""
    """The schema's `format`: int32, int64, date-time."""
    pattern: str = ""
    least: int | None = None
    """Smallest number, fewest characters or items."""
    most: int | None = None
    """Largest number, most characters, items or keys."""
    unique: str = ""
    """The list's x-kubernetes-list-type: set, map or atomic."""
    unique_by: tuple[str, ...] = ()
    """Fields that together must differ, for a map list."""
    rules: tuple[Rule, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Crd:
    """A custom resource definition with one version."""

    group: str
    version: str
    kind: str
    schema: Schema

    @property
    def api_version(self) -> str:
        """`apiVersion` of the CRD's objects."""
        return f"{self.group}/{self.version}"


@functools.lru_cache(maxsize=4)
def parse_crd(text: str) -> Crd:
    """Return the definition in a YAML text of a CustomResourceDefinition with one version.

    Raises:
        SchemaError: The text is no such definition, or uses an unknown construct.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if it is built
    try:
        spec = yaml.load(text, Loader=loader)["spec"]  # noqa: S506, both loaders are safe ones
        (version,) = spec["versions"]
        schema = _schema(version["schema"]["openAPIV3Schema"], ())
        return Crd(spec["group"], version["name"], spec["names"]["kind"], schema)
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"not a CustomResourceDefinition with one version: {error!r}") from error


def walk(schema: Schema, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """Yield every field under a schema with its path, the schema first; `[]` steps into lists."""
    yield path, schema
    for name, child in schema.properties.items():
        yield from walk(child, (*path, name))
    if schema.items is not None:
        yield from walk(schema.items, (*path[:-1], f"{path[-1]}[]"))


_TYPES: Final[Mapping[str, FieldKind]] = {
    kind.value: kind for kind in FieldKind if kind is not FieldKind.INT_OR_STRING
}
_UNDERSTOOD: Final = frozenset(
    {"type", "description", "properties", "required", "additionalProperties", "items", "default"}
    | {"enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems"}
    | {"maxItems", "maxProperties", "x-kubernetes-preserve-unknown-fields"}
    | {"x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"}
    | {"x-kubernetes-validations"}
)
_RULE_FIELDS: Final = frozenset({"rule", "message", "messageExpression", "fieldPath", "reason"})


def _schema(node: Mapping[str, Any], path: Path) -> Schema:
    strange = sorted(node.keys() - _UNDERSTOOD)
    if strange:
        raise SchemaError(f"{'.'.join(map(str, path))}: {strange[0]} is not understood")
    values = node.get("additionalProperties")
    items = node.get("items")
    return Schema(
        kind=_kind(node, path),
        description=" ".join(str(node.get("description", "")).split()),
        properties={
            name: _schema(child, (*path, name))
            for name, child in node.get("properties", {}).items()
        },
        required=tuple(node.get("required", ())),
        values=_schema(values, (*path, "*")) if values is not None else None,
        items=_schema(items, (*path, "[]")) if items is not None else None,
        preserve=bool(node.get("x-kubernetes-preserve-unknown-fields", False)),
        has_default="default" in node,
        default=node.get("default"),
        choices=tuple(node.get("enum", ())),
        form=node.get("format", ""),
        pattern=node.get("pattern", ""),
        least=_first(node, "minimum", "minLength", "minItems"),
        most=_first(node, "maximum", "maxLength", "maxItems", "maxProperties"),
        unique=node.get("x-kubernetes-list-type", ""),
        unique_by=tuple(node.get("x-kubernetes-list-map-keys", ())),
        rules=tuple(_rule(rule, path) for rule in node.get("x-kubernetes-validations", ())),
    )


def _kind(node: Mapping[str, Any], path: Path) -> FieldKind:
    if node.get("x-kubernetes-int-or-string"):
        return FieldKind.INT_OR_STRING
    try:
        return _TYPES[node["type"]]
    except KeyError as error:
        raise SchemaError(f"{'.'.join(map(str, path))}: type {error} is not understood") from error


def _first(node: Mapping[str, Any], *names: str) -> int | None:
    return next((int(node[name]) for name in names if name in node), None)


def _rule(node: Mapping[str, Any], path: Path) -> Rule:
    strange = sorted(node.keys() - _RULE_FIELDS)
    if strange:
        raise SchemaError(f"{'.'.join(map(str, path))}: rule with {strange[0]} is not understood")
    return Rule(
        expression=node["rule"],
        message=" ".join(node["message"].split()),
        message_expression=node.get("messageExpression", ""),
        field=tuple(step for step in node.get("fieldPath", "").split(".") if step),
    )


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return a copy of `value` with every default of `schema`, without its null fields."""
    if schema.kind is FieldKind.OBJECT and isinstance(value, dict):
        return _object(value, schema)
    if schema.kind is FieldKind.ARRAY and isinstance(value, list) and schema.items is not None:
        return [with_defaults(item, schema.items) for item in value]
    return copy.deepcopy(value)


def _object(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, given in value.items():
        known = schema.properties.get(name)
        if known is None:
            result[name] = copy.deepcopy(given)
        elif given is not None:
            result[name] = with_defaults(given, known)
    for name, known in schema.properties.items():
        if name not in result and known.has_default:
            result[name] = with_defaults(known.default, known)
    return result
