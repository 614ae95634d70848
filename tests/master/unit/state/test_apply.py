"""Application of the journal's records to the durable state."""

from __future__ import annotations

import typing

from holdfast_master.instructions import Fact
from holdfast_master.job.state import apply
from holdfast_master.job.state.job_state import KEPT_ROUNDS, JobState
from holdfast_wire import messages as wire


def test_every_kind_of_fact_has_its_change() -> None:
    """A fact that somebody adds to the journal must change the state, or a restart forgets it."""
    assert set(apply._CHANGES) == set(typing.get_args(Fact))


def test_a_record_without_a_known_fact_changes_the_sequence_only() -> None:
    """A newer release may have written it."""
    state = JobState(event_limit=1, incident_limit=1)
    apply.apply(state, wire.JournalRecord(sequence=7, job_seconds=3.5))
    assert state == JobState(event_limit=1, incident_limit=1, sequence=7, job_seconds=3.5)


def test_a_replica_that_goes_on_for_long_counts_as_one_that_trains() -> None:
    """However many worlds came since it began: the time before the newcomers' step is training."""
    state = JobState(event_limit=1, incident_limit=1)
    for round_number in range(1, 3 * KEPT_ROUNDS):
        last = state.trains_since
        _take(state, _world(round_number), at=10.0 * round_number)
        assert round_number == 1 or state.trains_since is not None, f"world {round_number}, {last}"
        _take(
            state, wire.WorldTraining(round=round_number, step=round_number), at=10.0 * round_number
        )
        _take(
            state,
            wire.WorldEnded(round=round_number, step=round_number),
            at=10.0 * round_number + 5,
        )
    assert len(state.trained_rounds) <= KEPT_ROUNDS


def _world(number: int) -> wire.WorldDecided:
    """Return a world of the first replica, and of another that begins with it."""
    members = tuple(wire.WorldMember(node_rank=rank, local_world_size=1) for rank in (0, 1))
    replicas = (
        wire.WorldReplica(number=1, round=1, nodes=1),
        wire.WorldReplica(number=number + 1, round=number, nodes=1),
    )
    return wire.WorldDecided(round=number, members=members, replicas=replicas, store_port=1)


def _take(state: JobState, fact: Fact, *, at: float) -> None:
    record = wire.JournalRecord(sequence=state.sequence + 1, job_seconds=at, fact=fact)
    apply.apply(state, record)
