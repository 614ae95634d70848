"""The CRD's own rules, evaluated in their own language: one source for cluster and laptop.

Rules are CEL expressions beside the schema (`x-kubernetes-validations`). They are relations between
fields, or transition rules, which compare with the object before. Types and bounds are no rules:
`structure` checks them first, and rules about an unreadable field are skipped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from holdfast_operator.spec.problems import Path, Problem, ProblemKind, show_value, value_at
from holdfast_operator.spec.schema import FieldKind, Rule, Schema

_READ: Final = re.compile(r"\bself((?:\.[A-Za-z_]\w*\b(?!\())*)")
_FORMAT: Final = re.compile(r"%(.)")


def check_relations(
    new: Any, schema: Schema, known: Sequence[Problem] = (), *, old: Any = None, path: Path = ()
) -> Iterator[Problem]:
    """Yield every rule of `schema` and below that does not hold.

    Args:
        new: The object, with defaults filled in; numbers fit into 64 bits.
        schema: The schema with the rules.
        known: Problems that `structure` found; rules about unreadable fields are skipped.
        old: The object before an update; None if it is new.
        path: Path of `new`.
    """
    rules = [
        rule
        for rule in schema.rules
        if not (rule.about_change and old is None) and _readable(rule, path, known)
    ]
    if rules:
        values = {"self": json_to_cel(new)} | ({} if old is None else {"oldSelf": json_to_cel(old)})
        broken = (_broken(rule, new, values, path, certain=not known) for rule in rules)
        yield from (problem for problem in broken if problem is not None)
    if schema.kind is FieldKind.OBJECT and isinstance(new, dict):
        for name, child in schema.properties.items():
            if name in new:
                before = old.get(name) if isinstance(old, dict) else None
                yield from check_relations(new[name], child, known, old=before, path=(*path, name))
    elif schema.items is not None and isinstance(new, list):
        for at, item in enumerate(new):
            before = _counterpart(item, old, schema)
            yield from check_relations(item, schema.items, known, old=before, path=(*path, at))


def _counterpart(item: Any, old: Any, schema: Schema) -> Any:
    """Return the item of the old list that the new one continues; None if that is unclear."""
    if schema.unique != "map" or not isinstance(old, list) or not isinstance(item, dict):
        return None
    key = [item.get(name) for name in schema.unique_by]
    return next((one for one in old if [one.get(name) for name in schema.unique_by] == key), None)


def _readable(rule: Rule, path: Path, known: Sequence[Problem]) -> bool:
    """Return True if every field that the rule names has a readable value."""
    reads = [path + read for read in _reads(rule)]
    wrong = [place for problem in known if problem.kind.unreadable for place in _places(problem)]
    return not any(read[: len(place)] == place for read in reads for place in wrong)


def _reads(rule: Rule) -> frozenset[Path]:
    """Return the fields that the rule names."""
    return frozenset(
        tuple(step for step in match.group(1).split(".") if step)
        for match in _READ.finditer(rule.expression)
    )


def _blamed(rule: Rule) -> Path:
    """Return the field to blame for a broken rule: the only one that it is about."""
    reads = _reads(rule)
    return next(iter(reads)) if not rule.field and len(reads) == 1 else rule.field


def _places(problem: Problem) -> tuple[Path, ...]:
    return (problem.path,) if problem.meant is None else (problem.path, problem.meant)


def _broken(
    rule: Rule, new: Any, values: dict[str, celtypes.Value], path: Path, *, certain: bool
) -> Problem | None:
    try:
        if _program(rule.expression).evaluate(values):
            return None
        message = _message(rule, values)
    except CELEvalError as error:
        if not certain:  # a fault that is reported already keeps the rule from running
            return None
        message = f"the rule {rule.expression!r} cannot be evaluated: {error}"
    field = _blamed(rule)
    blamed = value_at(new, field)
    value = "" if blamed is None or isinstance(blamed, dict | list) else show_value(blamed)
    fault = f"is refused: {message}" if value else message
    return Problem(path + field, ProblemKind.RELATION, fault, value=value)


def _message(rule: Rule, values: dict[str, celtypes.Value]) -> str:
    """Return the rule's message with its values, or the fixed message if that is impossible."""
    if not rule.message_expression:
        return rule.message
    try:
        return str(_program(rule.message_expression).evaluate(values))
    except CELEvalError:
        return rule.message


@functools.cache
def _environment() -> celpy.Environment:
    return celpy.Environment()


@functools.lru_cache(maxsize=256)
def _program(expression: str) -> celpy.Runner:
    """Return the compiled expression; a CRD has some twenty, and each takes about 1 ms."""
    environment = _environment()
    return environment.program(environment.compile(expression), functions={"format": _format})


def _format(template: celtypes.Value, values: celtypes.Value) -> celtypes.Value:
    """Return Kubernetes' `'…%d…'.format([…])`, which cel-python lacks; only %d and %s."""
    if not isinstance(template, str) or not isinstance(values, list):
        raise TypeError("format needs a text and a list")
    given = iter(values)
    text = _FORMAT.sub(lambda at: "%" if at.group(1) == "%" else str(next(given)), template)
    return celtypes.StringType(text)
