"""Verdicts on one node alone: each figure against its limits, a reference, and its like devices.

A node of a job is compared with others by the master (its `policies/preflight`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from holdfast_wire.resources import (
    TRAITS,
    Resource,
    amount,
    broken_limit,
    goodness,
    level_of,
    margin,
    share,
)


class FigureVerdict(enum.StrEnum):
    """Judgement of one figure."""

    OK = "ok"
    """Within its limits, or as fast as its reference."""
    SLOW = "slow"
    FAULTY = "faulty"
    """It failed or hung, or breaks a limit."""
    NO_REFERENCE = "no reference"
    """Measured, and there is nothing to compare it with."""
    NOT_CHECKED = "not checked"


FAULTS = (FigureVerdict.SLOW, FigureVerdict.FAULTY)
_Key = tuple[Resource, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One figure, as a measurement gave it."""

    resource: Resource
    subject: str = ""
    """Device or folder."""
    value: float | None = None
    """In the resource's unit; None: there is none."""
    error: str = ""
    skipped: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFigure:
    """One figure with its verdict."""

    resource: Resource
    subject: str
    value: float | None
    unit: str
    reference: float | None
    """Figure that it was compared with; None: there was none."""
    verdict: FigureVerdict
    reason: str


def judge(readings: Sequence[Reading], reference: Mapping[_Key, float]) -> tuple[JudgedFigure, ...]:
    """Return each figure with its verdict.

    reference: Figures of a healthy node, by resource and subject. Without one for this subject,
        the best of the resource counts: another node's disk has another path.
    """
    return tuple(_judged(one, readings, reference) for one in readings)


def _judged(
    reading: Reading, readings: Sequence[Reading], reference: Mapping[_Key, float]
) -> JudgedFigure:
    resource, value = reading.resource, reading.value
    if reading.skipped or (value is None and not reading.error):
        return _say(reading, FigureVerdict.NOT_CHECKED, reading.skipped or "it was not measured")
    if reading.error or value is None:
        return _say(reading, FigureVerdict.FAULTY, reading.error)
    if broken := broken_limit(resource, value):
        return _say(reading, FigureVerdict.FAULTY, broken)
    if not TRAITS[resource].tolerance:
        return _say(reading, FigureVerdict.OK, "within its limit")
    given, what = _reference(reading, reference), "the reference"
    if given is None:
        given, what = _of_like_devices(reading, readings), "like devices"
    if given is None:
        return _say(reading, FigureVerdict.NO_REFERENCE, "")
    return _compared(reading, value, given, what)


def _compared(reading: Reading, value: float, given: float, what: str) -> JudgedFigure:
    resource = reading.resource
    slow = goodness(resource, value) < goodness(resource, given) - margin(resource)
    text = f"{share(resource, value, given):.0%} of {what}"
    if slow:
        text += f", {TRAITS[resource].tolerance:.0%} is the least"
    return _say(reading, FigureVerdict.SLOW if slow else FigureVerdict.OK, text, given)


def _reference(reading: Reading, reference: Mapping[_Key, float]) -> float | None:
    exact = reference.get((reading.resource, reading.subject))
    if exact is not None:
        return exact
    same = [value for (resource, _), value in reference.items() if resource is reading.resource]
    return max(same, key=lambda value: goodness(reading.resource, value), default=None)


def _of_like_devices(reading: Reading, readings: Sequence[Reading]) -> float | None:
    """Return the figure that the better quarter of like devices reaches; None without others.

    A fault makes a device slower, never faster. Where most are slow compared with it, they are
    of different kinds, and nothing is compared.
    """
    resource = reading.resource
    values = [one.value for one in readings if one.resource is resource and one.value is not None]
    if len(values) < 2:
        return None
    goods = [goodness(resource, value) for value in values]
    level = level_of(goods)
    slow = [good for good in goods if good < level - margin(resource)]
    if 2 * len(slow) > len(goods):
        return None
    return next(value for value in values if goodness(resource, value) == level)


def _say(
    reading: Reading, verdict: FigureVerdict, reason: str, reference: float | None = None
) -> JudgedFigure:
    return JudgedFigure(
        resource=reading.resource,
        subject=reading.subject,
        value=reading.value,
        unit=TRAITS[reading.resource].unit,
        reference=reference,
        verdict=verdict,
        reason=reason,
    )


def limit_words(resource: Resource) -> str:
    """Return the limit of a resource for people: "at least 1 GiB"; "" without one."""
    trait = TRAITS[resource]
    if trait.least is not None:
        return f"at least {amount(resource, trait.least)}"
    return "" if trait.most is None else f"at most {amount(resource, trait.most)}"
