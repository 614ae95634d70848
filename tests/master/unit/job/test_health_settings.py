"""Health settings that contradict each other or can have no effect: said once, nothing stops."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_master.job.requests.operator_messages import ineffective
from holdfast_wire.messages import HangPolicy, HealthMode, HealthPolicy, StragglerPolicy
from holdfast_wire.reasons import EventReason
from simulation.steered.job import job_spec, training

_HANG = HangPolicy(
    mode=HealthMode.REPORT, step_time_factor=10.0, min_seconds=60.0, first_step_seconds=1800.0
)
_SLOW = StragglerPolicy(
    mode=HealthMode.ACT, slowdown_percent=20, window_steps=50, votes=3, votes_out_of=5
)


def _said(hang: HangPolicy = _HANG, slow: StragglerPolicy = _SLOW, **changes: Any) -> list[str]:
    found = [*ineffective(job_spec(health=HealthPolicy(hang=hang, straggler=slow), **changes))]
    return [text.partition(" ")[0] for text in found]


def test_nothing_is_said_of_settings_that_fit() -> None:
    """Neither of a job without any."""
    assert _said() == []
    assert list(ineffective(job_spec())) == []


def test_a_first_step_that_is_to_be_quicker_than_any_other_is_named() -> None:
    """Its limit is the longer of the two; where nothing is judged, nothing is said."""
    short = dataclasses.replace(_HANG, first_step_seconds=10.0)
    assert _said(short) == ["health.hang.firstStepSeconds"]
    assert _said(dataclasses.replace(short, mode=HealthMode.DISABLED)) == []


def test_more_votes_than_windows_are_named() -> None:
    """A spec that no CRD has checked can have them."""
    assert _said(slow=dataclasses.replace(_SLOW, votes=6)) == ["health.straggler.votes"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"min_replicas": 4}, True),
        ({"min_replicas": 4, "standbys": 1}, False),
        ({"min_replicas": 3}, False),
        ({"min_replicas": 3, "node_unit": 2}, True),
        ({"min_replicas": 2, "node_unit": 2}, False),
    ],
)
def test_act_without_room_is_named(spec: dict[str, Any], said: bool) -> None:  # noqa: FBT001
    """A node can leave where a standby waits, or where fewer nodes may train."""
    assert (_said(**spec) == ["health.straggler.mode"]) is said
    report = dataclasses.replace(_SLOW, mode=HealthMode.REPORT)
    assert _said(slow=report, **spec) == []


def test_people_are_told_once_and_training_goes_on() -> None:
    """Later specs with the same contradiction say nothing; a new one is told."""
    job = training(3, min_replicas=3, health=HealthPolicy(hang=_HANG, straggler=_SLOW))
    for generation in (2, 3):
        job.take(OperatorMessage(dataclasses.replace(job.spec, generation=generation)))
    assert job.reasons().count(EventReason.HEALTH_SETTINGS) == 1
    short = dataclasses.replace(_HANG, first_step_seconds=10.0)
    health = HealthPolicy(hang=short, straggler=_SLOW)
    job.take(OperatorMessage(dataclasses.replace(job.spec, generation=4, health=health)))
    assert job.reasons().count(EventReason.HEALTH_SETTINGS) == 2
    job.run(2.0)
    assert job.members == [0, 1, 2]
