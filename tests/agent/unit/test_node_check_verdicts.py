"""Verdicts of `holdfast check` on one node alone."""

from __future__ import annotations

import pytest

from holdfast_agent.policies.node_check import FigureVerdict, Reading, judge
from holdfast_wire.resources import TRAITS, Resource, goodness, label, share

MATMUL = Resource.DEVICE_MATMUL


def verdict(
    reading: Reading, reference: float | None = None, subject: str = ""
) -> tuple[FigureVerdict, str]:
    """The verdict on one figure, and its reason."""
    known = {} if reference is None else {(reading.resource, subject): reference}
    (row,) = judge([reading], known)
    return row.verdict, row.reason


CASES = [
    # resource, value, reference, verdict
    (Resource.CPU_MATMUL, 0.1, None, FigureVerdict.NO_REFERENCE),
    (Resource.CPU_MATMUL, 0.1, 0.12, FigureVerdict.OK),
    (Resource.CPU_MATMUL, 0.1, 0.2, FigureVerdict.SLOW),
    (Resource.CPU_MATMUL, 0.2, 0.1, FigureVerdict.OK),
    (Resource.CPU_MATMUL, 0.0, 0.1, FigureVerdict.SLOW),
    (Resource.LINK_LATENCY, 300.0, 60.0, FigureVerdict.SLOW),
    (Resource.LINK_LATENCY, 200.0, 60.0, FigureVerdict.OK),
    (Resource.LINK_LATENCY, 10.0, 60.0, FigureVerdict.OK),
    (Resource.SHM_ROOM, 0.01, 8.0, FigureVerdict.FAULTY),
    (Resource.SHM_ROOM, 0.05, 8.0, FigureVerdict.OK),
    (Resource.CLOCK_OFFSET, 0.0, None, FigureVerdict.OK),
    (Resource.CLOCK_OFFSET, 1.5, None, FigureVerdict.FAULTY),
    (Resource.DEVICE_MEMORY_FREE, 40.0, None, FigureVerdict.FAULTY),
]


@pytest.mark.parametrize(("resource", "value", "reference", "expected"), CASES)
def test_a_figure_is_judged_by_its_limits_then_by_its_reference(
    resource: Resource, value: float, reference: float | None, expected: FigureVerdict
) -> None:
    """More is better for some resources, less for others."""
    assert verdict(Reading(resource=resource, value=value), reference)[0] is expected


def test_the_reason_has_the_share_and_the_least() -> None:
    """A person sees how far it is off."""
    reading = Reading(resource=MATMUL, value=300.0)
    assert verdict(reading, 600.0) == (FigureVerdict.SLOW, "50% of the reference, 85% is the least")


def test_an_error_is_a_fault_and_a_skip_is_none() -> None:
    """A hang says something about the node; a missing library does not."""
    failed = Reading(resource=MATMUL, error="no result in 10 s: it hangs")
    skipped = Reading(resource=MATMUL, skipped="torch is not installed in this Python")
    assert verdict(failed) == (FigureVerdict.FAULTY, "no result in 10 s: it hangs")
    assert verdict(skipped) == (FigureVerdict.NOT_CHECKED, "torch is not installed in this Python")
    assert verdict(Reading(resource=MATMUL))[0] is FigureVerdict.NOT_CHECKED


def test_a_slow_device_is_named_by_the_devices_beside_it() -> None:
    """One of eight needs no reference of another node."""
    values = [600.0, 610.0, 590.0, 605.0, 300.0, 600.0, 595.0, 600.0]
    readings = [
        Reading(resource=MATMUL, subject=f"cuda:{at}", value=value)
        for at, value in enumerate(values)
    ]
    slow = [row.subject for row in judge(readings, {}) if row.verdict is FigureVerdict.SLOW]
    assert slow == ["cuda:4"]


def test_devices_of_two_kinds_are_not_compared() -> None:
    """Most are slow beside the fastest: nothing is said."""
    readings = [
        Reading(resource=MATMUL, subject=f"cuda:{at}", value=value)
        for at, value in enumerate([600.0, 100.0, 100.0])
    ]
    assert {row.verdict for row in judge(readings, {})} == {FigureVerdict.NO_REFERENCE}


def test_a_reference_of_the_same_subject_goes_before_others() -> None:
    """Device by device; for a folder that the other node lacks, its best one counts."""
    known = {(MATMUL, "cuda:0"): 300.0, (MATMUL, "cuda:1"): 600.0}
    rows = judge(
        [
            Reading(resource=MATMUL, subject="cuda:0", value=290.0),
            Reading(resource=MATMUL, subject="cuda:5", value=290.0),
        ],
        known,
    )
    assert [row.reference for row in rows] == [300.0, 600.0]


@pytest.mark.parametrize("resource", Resource)
def test_every_resource_is_judged_by_a_tolerance_or_a_limit(resource: Resource) -> None:
    """A resource with neither would never be found bad."""
    trait = TRAITS[resource]
    limited = trait.least is not None or trait.most is not None
    assert limited is not bool(trait.tolerance)
    assert 0 <= trait.tolerance < 1
    assert label(resource).isprintable()
    better = (1.0, 2.0) if trait.higher_is_better else (2.0, 1.0)
    assert goodness(resource, better[0]) < goodness(resource, better[1])
    assert share(resource, better[0], better[1]) == 0.5
