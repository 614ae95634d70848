"""A master without a journal meets ranks that save because an earlier master wanted it."""

from __future__ import annotations

import pytest

from holdfast_master.inputs import UserRequest
from holdfast_wire.messages import BarrierAck, DrainNodeRequest, MasterSpec, ScaleRequest
from simulation.steered.job import SteeredJob, job_spec


def saving_job(
    *seconds: float, spec: MasterSpec | None = None, ask: UserRequest | None = None
) -> SteeredJob:
    """A job whose nodes, of two ranks, take so long to save, and have begun to."""
    job = SteeredJob(spec or job_spec(replicas=len(seconds), min_replicas=1))
    job.raises = 0.0
    job.add_agents(len(seconds), local=2)
    job.run_until("TRAINING")
    job.run(2.0)
    for rank, taken in enumerate(seconds):
        job.agents[rank].save_seconds = taken
    job.ask(ask or DrainNodeRequest(node_rank=len(seconds) - 1))
    limit = job.time.now + 10.0
    assert job.time.run(limit, lambda: all(a.saving for a in job.agents.values()))
    return job


def master_without_journal(job: SteeredJob, after: float) -> None:
    """SIGKILL, and its successor finds nothing."""
    job.restart_master(after, journal=False)


@pytest.mark.parametrize(
    ("seconds", "after"),
    [((8.0, 8.0), 0.5), ((0.3, 8.0), 1.0), ((0.3, 0.4), 2.0)],
    ids=["all at it", "one done, one at it", "all done"],
)
def test_who_saves_is_not_killed_and_no_step_is_lost(
    seconds: tuple[float, float], after: float
) -> None:
    """Ranks that saved and ended are not missing: the world is waited for, then the next begins."""
    job = saving_job(*seconds)
    step = job.step(1)
    master_without_journal(job, after)
    limit = job.time.now + 20.0
    assert job.time.run(limit, lambda: 2 in job.rounds)
    job.run(2.0)
    assert (job.saves_cut, job.training.redone) == (0, 0)
    assert job.rounds[2].base == step
    assert job.charges() == []
    assert "WorldAdopted" in job.reasons()
    assert job.refold() == job.state


def test_who_never_heard_of_the_barrier_is_not_waited_for() -> None:
    """One saved, one trains on and has seen no barrier: they cannot stop together any more.

    What it says again of the barrier before, which it did hear of, is about another round.
    """
    job = saving_job(0.3, 0.3)
    late = job.agents[1]
    barrier = job.context.worlds.barrier
    assert barrier is not None
    late.forget_barrier()
    earlier = BarrierAck(barrier_id=barrier.number, seen_at_step=3)
    late.statements.note(earlier, 0, late.now)
    master_without_journal(job, 1.0)
    began = job.time.now
    assert job.time.run(began + 30.0, lambda: 2 in job.rounds)
    assert job.time.now - began < 5.0
    assert "BarrierMissed" in job.reasons()


def test_a_save_has_as_long_under_the_next_master() -> None:
    """40 s are longer than a barrier's patience, and within what a smaller job was promised."""
    spec = job_spec(replicas=2, min_replicas=1, scale_down_grace_seconds=60.0)
    job = saving_job(40.0, 40.0, spec=spec, ask=ScaleRequest(replicas=1))
    master_without_journal(job, 0.5)
    assert job.time.run(job.time.now + 60.0, lambda: 2 in job.rounds)
    assert (job.saves_cut, job.charges()) == (0, [])
    assert "BarrierMissed" not in job.reasons()
