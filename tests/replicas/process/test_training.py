"""Synchronous replicas that are killed, frozen and added: the weights are an undisturbed run's.

Belongs here: what happens to real processes under a small control plane. Does not belong here: the
rules of a meeting (`unit/test_meeting`), and jobs with a master (`recovery`).

Each test draws its seed, and names it where it fails. All is in float64: a difference of 1e-12 is a
micro-batch that is missing, doubled or weighed wrongly, and not the order of a sum.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from local_sgd.elastic_runs import check_kept, run, steps_of
from replicas.held import trained
from replicas.training import MICRO_BATCH, MICRO_BATCHES

pytestmark = [pytest.mark.train, pytest.mark.timeout(300)]


def test_kills_and_joins_leave_the_trajectory_as_it_was() -> None:
    """Two of four are lost at one time, two come, one is frozen: each step has its 12 once."""
    told, why = trained(scenario="campaign", events=["two", "join", "freeze", "join"])
    steps = [line for lines in told["ranks"].values() for line in steps_of(lines)]
    assert max(line["recomputed"] for line in steps) > 0, why
    for line in steps:
        assert line["computed"] <= MICRO_BATCHES, why


def test_shards_of_a_replica_go_through_a_loss_and_a_join_together() -> None:
    """FSDP2 on two ranks a replica: no shard takes a step that the other does not."""
    trained(scenario="campaign", kind="shards", shards=2, replicas=3, events=["kill", "join"])


@pytest.mark.extended(
    "the same count, of more samples",
    held_by=[
        "replicas/process/test_training.py::test_kills_and_joins_leave_the_trajectory_as_it_was",
    ],
)
def test_a_million_samples_are_used_once_each_while_the_world_changes() -> None:
    """An epoch of 500 steps by 4, 3, 5, 2 and 6 replicas: by count, each id once."""
    seed = random.randrange(10_000)
    told = run(
        kind="whole", scenario="campaign", seed=seed, every=20, rounds=500, limit=250.0,
        events=["kill", "join", "join", "kill", "two", *["join"] * 4],
        samples=1_000_000, micro_batch=100, micro_batches=20,
    )  # fmt: skip
    counted, why = told["samples"], f"seed {seed}: {told['done']}"
    assert len(told["members"]) == 6, why
    assert (counted["wrong"], counted["lost"], counted["doubled"]) == ([], 0, 0), why
    assert (counted["steps"], counted["used"]) == (500, [1_000_000]), why


@pytest.mark.extended(
    "another way of the same sums: buckets that are summed within the replica first",
    held_by=[
        "replicas/process/test_training.py::test_kills_and_joins_leave_the_trajectory_as_it_was",
    ],
)
def test_whole_models_on_two_ranks_of_a_replica_reduce_by_parts() -> None:
    """Each rank of a replica has the whole model: they sum inside, and reduce a part each."""
    trained(scenario="campaign", shards=2, replicas=2, events=["join", "kill", "join"])


@pytest.mark.extended(
    "other settings of the same course",
    held_by=[
        "replicas/process/test_training.py::test_kills_and_joins_leave_the_trajectory_as_it_was",
    ],
)
@pytest.mark.parametrize(
    "settings",
    [{"overlap": False}, {"loader": {"num_workers": 2}}],
    ids=["behind-backward", "workers"],
)
def test_settings_change_nothing_in_the_trajectory(settings: dict[str, Any]) -> None:
    """Reduced behind the backward pass; read ahead by workers, by which what is lost is dropped."""
    told, why = trained(scenario="campaign", replicas=3, events=["kill", "join"], **settings)
    if "loader" in settings:
        lines = [line for lines in told["ranks"].values() for line in steps_of(lines)]
        assert max(line["dropped"] for line in lines) > 0, why


@pytest.mark.extended(
    "meetings that are disturbed; the rules have a model",
    held_by=[
        "replicas/process/test_training.py::test_kills_and_joins_leave_the_trajectory_as_it_was",
    ],
)
@pytest.mark.parametrize(
    "scenario", ["late roster", "frozen", "killed while meeting", "killed and frozen"]
)
def test_disturbed_meetings_lead_to_one_step(scenario: str) -> None:
    """A roster that is late, or has a dead one; a frozen replica that comes back far behind."""
    trained(scenario=scenario)


@pytest.mark.extended(
    "a setting of the same course, whose content the unit tests check",
    held_by=[
        "replicas/process/test_training.py::test_kills_and_joins_leave_the_trajectory_as_it_was",
    ],
)
def test_a_step_of_fewer_micro_batches_is_alike_on_all_that_are_left() -> None:
    """Nobody computes for a lost replica; what the sum had is on record, and nothing else is."""
    seed = random.randrange(10_000)
    told = run(
        seed=seed, kind="whole", scenario="campaign", every=30, replicas=3, on_loss="fewer",
        events=["kill", "join", "kill"],
    )  # fmt: skip
    counted, why = told["samples"], f"seed {seed}: {told['done']}"
    check_kept(told, why)
    steps = [line for lines in told["ranks"].values() for line in steps_of(lines)]
    assert {line["recomputed"] for line in steps} == {0}, why
    assert (counted["wrong"], counted["lost"], counted["doubled"]) == ([], 0, 0), why
    whole = counted["steps"] * MICRO_BATCHES * MICRO_BATCH
    assert 0.9 * whole < sum(counted["used"]) <= whole, why


def test_a_donor_waits_until_a_joiner_has_all() -> None:
    """The state takes longer on its way than a step: the joiner has the others' bits even so."""
    trained(scenario="campaign", replicas=2, events=["join"], slow_gift=0.3, every=20)


def test_no_replica_waits_for_one_that_learns_of_a_joiner_later() -> None:
    """It would train a whole step on, which the others would wait for; they train on with it."""
    told, why = trained(scenario="campaign", replicas=2, events=["join"], late=1)
    first = steps_of(told["ranks"]["0 0"])
    waits = [line["left"] - line["begun"] for line in first]
    assert sum(line["sees"] for line in first) > 2, f"{waits}, {why}"
    assert max(line["members"] for line in first) == 3, why
