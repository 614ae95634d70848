"""Checks of settings, as tables: values of one field, and settings that contradict each other.

Belongs here: what a table of checks consists of, and the text of a refusal. Does not belong here:
the tables (`config`, `combinations`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.local_sgd.errors import LocalSGDConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Value:
    """What one field may be."""

    field: str
    is_valid: Callable[[object], bool]
    expected: str
    """To follow "expected" in the refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[T]):
    """Settings that contradict each other, by a name that tests and users can refer to."""

    name: str
    fields: tuple[str, ...]
    """Those to show with their values; "outer.outer_optim_class" is a field of a part."""
    breaks: Callable[[T], bool]
    why: str
    """What would happen, or what the setting needs."""
    remedy: str


def check_values(settings: object, table: Iterable[Value]) -> None:
    """Raise LocalSGDConfigError for the first field with a value that is not valid."""
    for one in table:
        value = getattr(settings, one.field)
        if not one.is_valid(value):
            raise LocalSGDConfigError(f"{one.field}={value!r}: expected {one.expected}")


def check_rules(settings: T, table: Iterable[Rule[T]]) -> None:
    """Raise LocalSGDConfigError for the first rule that the settings break."""
    for rule in table:
        if rule.breaks(settings):
            shown = ", ".join(
                f"{field.rpartition('.')[2]}={operator.attrgetter(field)(settings)!r}"
                for field in rule.fields
            )
            raise LocalSGDConfigError(f"{shown}: {rule.why}; {rule.remedy} (rule {rule.name})")


def is_flag(value: object) -> bool:
    """Return if a value is True or False."""
    return isinstance(value, bool)


def whole(least: int) -> Callable[[object], bool]:
    """Return the check of an integer."""
    return lambda value: isinstance(value, int) and not is_flag(value) and value >= least


def real(is_inside: Callable[[float], bool]) -> Callable[[object], bool]:
    """Return the check of a finite number."""

    def check(value: object) -> bool:
        if not isinstance(value, int | float) or is_flag(value):
            return False
        return math.isfinite(value) and is_inside(value)

    return check


def optional(check: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the check that lets None pass."""
    return lambda value: value is None or check(value)


def one_of(*names: str) -> Callable[[object], bool]:
    """Return the check of a name."""
    return lambda value: isinstance(value, str) and value in names
