"""The life of a round on a node, and the time account drawn from it."""

from __future__ import annotations

import pytest

from holdfast_agent.policies.round_phases import (
    TRANSITIONS,
    InvalidRoundTransitionError,
    RoundPhase,
    RoundTrigger,
    SecondsByClass,
    class_of,
    follow,
)
from holdfast_wire.messages import GoodputClass


def _walk(*happenings: RoundTrigger) -> RoundPhase:
    phase = RoundPhase.IDLE
    for happening in happenings:
        phase = follow(phase, happening)
    return phase


@pytest.mark.parametrize(
    ("happenings", "phase"),
    [
        pytest.param([RoundTrigger.SPAWN], RoundPhase.STARTING, id="started"),
        pytest.param(
            [RoundTrigger.SPAWN, RoundTrigger.FIRST_STEP], RoundPhase.RUNNING, id="running"
        ),
        pytest.param(
            [RoundTrigger.SPAWN, RoundTrigger.KILL], RoundPhase.KILLING, id="killed-early"
        ),
        pytest.param(
            [RoundTrigger.SPAWN, RoundTrigger.KILL, RoundTrigger.DEAD, RoundTrigger.SPAWN],
            RoundPhase.STARTING,
            id="restarted",
        ),
        pytest.param([RoundTrigger.SPAWN, RoundTrigger.ALL_EXITED], RoundPhase.ENDED, id="ended"),
        pytest.param(
            [RoundTrigger.SPAWN, RoundTrigger.ALL_EXITED, RoundTrigger.DEAD],
            RoundPhase.IDLE,
            id="gone",
        ),
        pytest.param(
            [RoundTrigger.SPAWN, RoundTrigger.STOP, RoundTrigger.KILL],
            RoundPhase.KILLING,
            id="grace-cut",
        ),
        pytest.param(
            [RoundTrigger.SPAWN, RoundTrigger.KILL, RoundTrigger.STOP],
            RoundPhase.KILLING,
            id="too-late",
        ),
    ],
)
def test_a_round_goes_through_its_phases(happenings: list[RoundTrigger], phase: RoundPhase) -> None:
    """Orders and deaths lead where the table says."""
    assert _walk(*happenings) is phase


def test_a_killed_round_takes_no_first_step() -> None:
    """A happening without a place in the table is a defect that names both."""
    with pytest.raises(InvalidRoundTransitionError, match=r"'first step' in phase 'killing'"):
        _walk(RoundTrigger.SPAWN, RoundTrigger.KILL, RoundTrigger.FIRST_STEP)


def test_no_new_round_starts_beside_a_living_one() -> None:
    """Processes of a new round are started only when nothing of the old one lives."""
    starts = {phase for phase, happening in TRANSITIONS if happening is RoundTrigger.SPAWN}
    assert starts == {RoundPhase.IDLE}


def test_everything_can_be_killed_and_found_dead() -> None:
    """There is no phase in which an order to kill, or a death, would be refused."""
    for phase in RoundPhase:
        assert follow(phase, RoundTrigger.KILL) is RoundPhase.KILLING
        assert follow(phase, RoundTrigger.DEAD) is RoundPhase.IDLE


@pytest.mark.parametrize("saving", [True, False])
@pytest.mark.parametrize("phase", list(RoundPhase))
def test_every_second_has_a_class_that_the_wire_knows(*, phase: RoundPhase, saving: bool) -> None:
    """Each phase is accounted to one of the job's goodput classes."""
    assert class_of(phase, saving=saving) in GoodputClass.__members__


def test_a_checkpoint_is_not_productive() -> None:
    """While a rank saves, running time is checkpoint time."""
    assert class_of(RoundPhase.RUNNING, saving=True) == "CHECKPOINT"
    assert class_of(RoundPhase.RUNNING, saving=False) == "PRODUCTIVE"
    assert class_of(RoundPhase.STARTING, saving=True) == "RESTART"


def test_the_ledger_sums_by_class() -> None:
    """Seconds add up within their class and come out sorted."""
    ledger = SecondsByClass().add("WAITING", 2.0).add("PRODUCTIVE", 1.0).add("WAITING", 0.5)
    assert [(e.name, e.seconds) for e in ledger.entries()] == [
        ("PRODUCTIVE", 1.0),
        ("WAITING", 2.5),
    ]
