"""The job's state machine is a table, and its page is drawn from it."""

from __future__ import annotations

import itertools

import pytest

from holdfast_master.job.state.phases import (
    ENDED,
    TABLE,
    InvalidPhaseTransitionError,
    Trigger,
    advance,
)
from holdfast_wire import reasons
from holdfast_wire.messages import JobPhase
from state_machine import MEANINGS, PAGE, diagram, page

PHASES = [phase for phase in JobPhase if phase is not JobPhase.UNSPECIFIED]


@pytest.mark.parametrize(("phase", "trigger"), list(itertools.product(PHASES, Trigger)))
def test_a_step_is_in_the_table_or_impossible(phase: JobPhase, trigger: Trigger) -> None:
    """An impossible step carries the story of what came before."""
    following = TABLE.get((phase, trigger))
    if following is not None:
        assert advance(phase, trigger) is following
        return
    with pytest.raises(InvalidPhaseTransitionError, match=trigger.name) as caught:
        advance(phase, trigger, lambda: ["1 NodeJoined: node 0"])
    assert "1 NodeJoined: node 0" in str(caught.value)
    assert f"in phase {phase.name}" in str(caught.value)


def test_nothing_leaves_the_end() -> None:
    """And every other phase can reach it."""
    assert not {phase for phase, _ in TABLE} & ENDED
    for phase in set(PHASES) - ENDED - {JobPhase.STOPPING}:
        assert TABLE[phase, Trigger.END_DECIDED] is JobPhase.STOPPING


def test_every_phase_is_explained_and_reached() -> None:
    """No phase without a meaning, none that cannot come."""
    assert set(MEANINGS) == set(PHASES)
    assert set(TABLE.values()) == set(PHASES)


def test_the_page_is_drawn_from_the_table() -> None:
    """`make manifests` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert diagram() in page()


def test_reasons_are_camel_case_and_closed() -> None:
    """Each list has no repeats and reads as Kubernetes' reasons do."""
    for group in (reasons.EventReason, reasons.Cause, reasons.PhaseReason, reasons.EndReason):
        values = [value for name, value in vars(group).items() if name.isupper()]
        assert len(values) == len(set(values)) > 0
        assert all(value.isalnum() and value[0].isupper() for value in values)
