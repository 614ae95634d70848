"""Ordinary jobs under Act: no action without a fault, and no more node-seconds with one.

`campaigns.act_or_report` does the same with hundreds of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from campaigns import act_or_report
from simulation.ordinary.habits import EVERYBODY, NEVER, Every, Habits, Trouble, draw
from simulation.ordinary.job import compare

pytestmark = pytest.mark.slow  # each runs jobs of hours


def plain(**changes: object) -> Habits:
    """A job of 12 minutes on four nodes and a standby, which saves by the SDK and has no fault."""
    found = dataclasses.replace(
        draw(1),
        nodes=4,
        least=3,
        standbys=1,
        local=1,
        sdk=True,
        sections=False,
        saves_at_stop=True,
        checkpointer=True,
        restores=True,
        step=1.0,
        steps=700,
        start=2.0,
        spread=0.03,
        noise=0.02,
        save=Every(150, 5.0, EVERYBODY),
        evaluation=NEVER,
        epoch=NEVER,
        stall=NEVER,
        duty=0.0,
        duty_from=0,
    )
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


ORDINARY: Mapping[str, Mapping[str, object]] = {
    "rank 0 saves for 90 s": {"save": Every(150, 90.0, 0), "sdk": False},
    "epochs begin with 90 s of reading": {"epoch": Every(150, 90.0), "loader_works": False},
    "rank 0 evaluates for 2 min": {"evaluation": Every(200, 120.0, 0), "sdk": False},
    "all wait for slow storage": {"stall": Every(150, 90.0)},
    "rank 0 logs more from step 300 on": {"duty": 0.6, "duty_from": 300},
}


@pytest.mark.parametrize("habit", ORDINARY)
def test_what_a_script_does_is_no_fault(habit: str) -> None:
    """Nothing is done about it, so the job costs what it costs under Report."""
    found = compare(plain(**ORDINARY[habit]))
    assert not act_or_report.judged([found], [])
    assert found.more == 0


@pytest.mark.parametrize("seed", [111, 144, 164])
def test_a_drawn_job_that_an_action_met_once_is_left_alone(seed: int) -> None:
    """Most ranks wait for shared storage (144), rank 0 saves and then follows the others (164).

    Of 111 the pauses were not learned: their steps are reported later than their collectives.
    """
    found = compare(draw(seed))
    assert not act_or_report.judged([found], [])


@pytest.mark.parametrize("trouble", [Trouble.SLOW, Trouble.HANG, Trouble.STORAGE])
def test_an_action_costs_less_than_waiting(trouble: Trouble) -> None:
    """A slow node leaves, a hang is ended, a node with a dead storage leaves."""
    ill = plain(trouble=trouble, trouble_at=300.0, victim=2, slow=1.0)
    found = compare(ill)
    assert found.act.actions
    assert found.more < 0
    assert not act_or_report.judged([], [found])
    assert "Act" in act_or_report.summary(trouble.value, [found])


def test_a_comparison_fails_where_an_action_is_worse() -> None:
    """An action without a fault, or a larger sum, is told with its seed."""
    found = compare(plain(trouble=Trouble.SLOW, trouble_at=300.0, victim=2, slow=1.0))
    turned = dataclasses.replace(found, report=found.act, act=found.report)
    assert act_or_report.judged([], [turned])
    (text,) = act_or_report.judged([found], [])
    assert text.startswith("seed 1, without a fault: ")
