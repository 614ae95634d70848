"""Random faults: whatever happens, in whatever order, the job comes back and ends well.

Each seed is a scenario of its own: sizes, delays, and a dozen faults drawn from workers, agents,
networks, operator and master. After every input all invariants are checked; a failing seed is
named in the test's id and in the message, and replays exactly.
"""

from __future__ import annotations

import pytest

from chaos import Chaos
from simulated_job import SimulatedJob, job_spec

SEEDS = 300
PER_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_a_job_survives_random_faults(first: int) -> None:
    """It trains at its full size once the faults are over, then succeeds; the journal agrees."""
    for seed in range(first, first + PER_TEST):
        try:
            Chaos(seed).run(faults=12)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_same_seed_gives_the_same_run() -> None:
    """The core is deterministic: no clock, no randomness, no order of sets shows."""
    runs = []
    for _ in range(2):
        chaos = Chaos(7)
        chaos.run(faults=8)
        runs.append(chaos.job.records)
    assert runs[0] == runs[1]


def test_many_faults_in_one_life() -> None:
    """A hundred faults; rounds only grow, charges are only forgotten by progress."""
    chaos = Chaos(11, masters=False)
    rounds, charged = [], []
    for number in range(100):
        if number % 10 == 9:
            chaos.heal()
        chaos.hurt()
        chaos.job.run(0.7)
        rounds.append(chaos.job.core.status(chaos.job.moment()).round)
        charged.append(len(chaos.job.charges()))
    assert rounds == sorted(rounds)
    assert rounds[-1] > 20
    assert charged[-1] > 5


def test_the_simulator_can_fail() -> None:
    """A core that forgot a member would be caught."""
    job = SimulatedJob(job_spec(replicas=2))
    job.add_agents(2)
    job.run_until("TRAINING")
    del job.core._desk.roster.nodes[1]
    with pytest.raises(Exception, match="member 1 of the running world is not present"):
        job.core.validate()
