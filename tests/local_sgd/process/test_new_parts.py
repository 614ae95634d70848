"""A new framework is one class, and so is a new trigger: both work with all that is there."""

from __future__ import annotations

import pytest

from local_sgd.replica_world import ReplicaWorlds

pytestmark = [pytest.mark.train, pytest.mark.timeout(120)]


def test_a_new_framework_trains_with_the_triggers_that_there_are(worlds: ReplicaWorlds) -> None:
    """Two replicas that move by 1 and by 2 are at the mean after each fourth step, and at the end.

    Between rounds each is where its own steps have led.
    """
    first, second = worlds.run(job="new parts", kind="gloo", world=2, trigger="steps", steps=6)
    assert [one[0] for one in first["values"]] == [1, 2, 3, 6, 7, 8]
    assert [one[1] for one in second["values"]] == [2, 4, 6, 6, 8, 10]
    assert (first["end"], second["end"], first["rounds"]) == (9, 9, 2)


def test_a_new_trigger_ends_rounds_of_any_framework(worlds: ReplicaWorlds) -> None:
    """Rounds follow steps 1, 2 and 4."""
    first, second = worlds.run(job="new parts", kind="gloo", world=2, trigger="doubling", steps=5)
    assert [one[0] for one in first["values"]] == [1.5, 3, 4, 6, 7]
    assert [one[0] for one in second["values"]] == [1.5, 3, 5, 6, 8]
    assert (first["end"], second["end"], first["rounds"]) == (7.5, 7.5, 4)
