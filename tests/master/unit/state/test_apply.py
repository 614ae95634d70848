"""Application of the journal's records to the durable state."""

from __future__ import annotations

import typing

from holdfast_master.instructions import Fact
from holdfast_master.job.state import apply
from holdfast_master.job.state.job_state import JobState
from holdfast_wire.messages import JournalRecord


def test_every_kind_of_fact_has_its_change() -> None:
    """A fact that somebody adds to the journal must change the state, or a restart forgets it."""
    assert set(apply._CHANGES) == set(typing.get_args(Fact))


def test_a_record_without_a_known_fact_changes_the_sequence_only() -> None:
    """A newer release may have written it."""
    state = JobState(event_limit=1, incident_limit=1)
    apply.apply(state, JournalRecord(sequence=7, job_seconds=3.5))
    assert state == JobState(event_limit=1, incident_limit=1, sequence=7, job_seconds=3.5)
