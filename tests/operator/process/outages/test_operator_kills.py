"""The operator is killed at drawn points of its work, often twice in a row; nothing comes of it.

`python -m bench.cluster kills` does the same 200 times and more.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.jobs import Make
from cluster.kubectl import Kubectl
from cluster.outages.killing import Killing
from cluster.release import Release
from cluster.rights import needs_pods

pytestmark = [pytest.mark.kube, pytest.mark.timeout(420), needs_pods]
_KILLS = 30


@pytest.mark.extended(
    "kills at many places; a successor goes on from what the API server has, wherever it was",
    held_by=[
        "operator/process/jobs/test_events.py::test_an_operator_goes_on_where_its_predecessor_stopped",
        "operator/process/outages/test_outages.py::test_another_replica_takes_over_from_a_leader_that_is_gone",
        "operator/process/outages/test_outages.py::test_a_storm_of_refusals_delays_and_doubles_nothing",
    ],
)
def test_an_operator_that_is_killed_anywhere_neither_doubles_nor_leaks(
    make_job: Make, kubectl: Kubectl, release: Release, tmp_path: Path
) -> None:
    """Jobs change all the while; one pod a place, one epoch a master, and a job that trains on."""
    seed = random.SystemRandom().randrange(10**6)
    killing = Killing(make_job, kubectl, release, tmp_path, seed)
    try:
        killing.run(_KILLS)
    finally:
        killing.stop()
    assert killing.faults == [], f"seed {seed}"
    assert len(killing.kills) >= _KILLS
    at_a_write = [line for line in killing.kills if "/" in line]
    assert len(at_a_write) > _KILLS / 4, killing.kills
