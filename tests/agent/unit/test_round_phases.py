"""The life of a round on a node, what of its ends is told, and the time account drawn from it."""

from __future__ import annotations

import pytest

from holdfast_agent.policies import round_phases
from holdfast_agent.policies.round_phases import (
    TRANSITIONS,
    InvalidRoundTransitionError,
    Orders,
    RoundPhase,
    RoundTrigger,
    class_of,
    follow,
)
from holdfast_wire.messages import GoodputClass

KILL, STOP, DEAD, SPAWN, FIRST_STEP, ALL_EXITED = RoundTrigger


def _walk(*happenings: RoundTrigger) -> RoundPhase:
    phase = RoundPhase.IDLE
    for happening in happenings:
        phase = follow(phase, happening)
    return phase


@pytest.mark.parametrize(
    ("happenings", "phase"),
    [
        pytest.param([SPAWN], RoundPhase.STARTING, id="started"),
        pytest.param([SPAWN, FIRST_STEP], RoundPhase.RUNNING, id="running"),
        pytest.param([SPAWN, KILL], RoundPhase.KILLING, id="killed-early"),
        pytest.param([SPAWN, KILL, DEAD, SPAWN], RoundPhase.STARTING, id="restarted"),
        pytest.param([SPAWN, ALL_EXITED], RoundPhase.ENDED, id="ended"),
        pytest.param([SPAWN, ALL_EXITED, DEAD], RoundPhase.IDLE, id="gone"),
        pytest.param([SPAWN, STOP, KILL], RoundPhase.KILLING, id="grace-cut"),
        pytest.param([SPAWN, KILL, STOP], RoundPhase.KILLING, id="too-late"),
    ],
)
def test_a_round_goes_through_its_phases(happenings: list[RoundTrigger], phase: RoundPhase) -> None:
    """Orders and deaths lead where the table says."""
    assert _walk(*happenings) is phase


def test_a_killed_round_takes_no_first_step() -> None:
    """A happening without a place in the table is a defect that names both."""
    with pytest.raises(InvalidRoundTransitionError, match=r"'first step' in phase 'killing'"):
        _walk(SPAWN, KILL, FIRST_STEP)


def test_no_new_round_starts_beside_a_living_one() -> None:
    """Processes of a new round are started only when nothing of the old one lives."""
    starts = {phase for phase, happening in TRANSITIONS if happening is SPAWN}
    assert starts == {RoundPhase.IDLE}


def test_everything_can_be_killed_and_found_dead() -> None:
    """There is no phase in which an order to kill, or a death, would be refused."""
    for phase in RoundPhase:
        assert follow(phase, KILL) is RoundPhase.KILLING
        assert follow(phase, DEAD) is RoundPhase.IDLE


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


def test_the_ledger_comes_sorted_by_class() -> None:
    """Two agents with the same seconds say the same."""
    found = round_phases.ledger({"WAITING": 2.5, "PRODUCTIVE": 1.0})
    sums = [(entry.name, entry.seconds) for entry in found]
    assert sums == [("PRODUCTIVE", 1.0), ("WAITING", 2.5)]


NOTHING = Orders.NONE
KILLED = Orders.KILLED
STOPPED = Orders.STOPPED
EXPIRED = Orders.KILLED | Orders.LEASE_EXPIRED


@pytest.mark.parametrize(
    ("code", "orders", "evidence"),
    [
        (-9, NOTHING, True),
        (0, NOTHING, True),
        (-9, KILLED, False),
        (1, KILLED, True),
        (1, STOPPED, False),
        (1, EXPIRED, False),
    ],
)
def test_what_the_agent_caused_is_no_evidence(*, code: int, orders: Orders, evidence: bool) -> None:
    """A rank that raised before its SIGKILL came is evidence; the SIGKILL is not."""
    assert round_phases.is_evidence(code, orders) is evidence


@pytest.mark.parametrize(
    ("code", "orders", "stale", "early"),
    [
        (-9, NOTHING, False, True),
        (1, NOTHING, False, True),
        (0, NOTHING, False, False),
        (-9, NOTHING, True, False),
        (1, KILLED, False, False),
        (1, STOPPED, False, False),
        (1, EXPIRED, False, False),
    ],
)
def test_only_a_failure_of_the_workers_own_is_told_before_it_is_gone(
    *, code: int, orders: Orders, stale: bool, early: bool
) -> None:
    """Everything else waits for the process's end, where more is known."""
    assert round_phases.is_early_news(code, orders, lease_is_stale=stale) is early


def test_the_master_is_told_of_ends_that_it_does_not_know() -> None:
    """Not of a round that its own assignment ended; of an expired lease always."""
    assert round_phases.tells_stopped(KILLED, next_waits=False)
    assert not round_phases.tells_stopped(KILLED, next_waits=True)
    assert round_phases.tells_stopped(EXPIRED, next_waits=True)
    assert not round_phases.tells_stopped(NOTHING, next_waits=False)
    assert [round_phases.is_shown(o) for o in (NOTHING, KILLED, STOPPED)] == [True, False, False]
