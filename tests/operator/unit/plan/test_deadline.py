"""The end of a job's time while no master is there to see it."""

from __future__ import annotations

import pytest

from holdfast_operator.finish import LOST_SECONDS, STARTS_SECONDS
from holdfast_operator.plan.actions import FinishJob, Plan
from holdfast_operator.plan.history import ApiRefusal
from holdfast_operator.plan.pods import MASTER_SLOT
from holdfast_operator.plan.view import MasterView
from holdfast_wire.messages import JobPhase, JobStatus, PodPhase
from jobs.planned import NOW, World, creates, deletes, worker

LIMIT_SECONDS = 20


def _waiting(**fields: object) -> World:
    """A worker runs, its master's pod is not placed."""
    world = World({"replicas": 1, "activeDeadlineSeconds": LIMIT_SECONDS, **fields})
    world.make(MASTER_SLOT)
    world.change("t-master-0-0", waiting="Unschedulable", waiting_text="0/2 nodes are available")
    world.make(worker(0))
    world.change("t-worker-0-0", phase=PodPhase.RUNNING, ready=True)
    return world


def _ends(made: Plan) -> bool:
    return any(isinstance(one, FinishJob) for one in made.actions)


def test_a_job_whose_master_cannot_start_ends_at_its_deadline() -> None:
    """Its worker would hold its devices for ever; the reason has what was in the master's way."""
    world = _waiting()
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), LIMIT_SECONDS)
    world.now += LIMIT_SECONDS
    assert world.look().requeue_after == 5, "as for every end, agents may leave by themselves"
    world.now += 5
    made = world.look()
    assert deletes(made) == {"t-worker-0-0": "JobFinished"}
    world.do(made)
    world.finish_deletions()
    assert _ends(world.look())
    failed = world.condition("Failed")
    assert failed["reason"] == "DeadlineExceeded"
    assert failed["message"] == (
        "the job ran longer than activeDeadlineSeconds 20, and no master was there to end it; "
        "Unschedulable: t-master-0-0: 0/2 nodes are available"
    )
    assert set(deletes(world.look())) == {"t-master-0-0"}


def test_a_quota_that_refuses_the_master_ends_it_too() -> None:
    """Its pod was never made."""
    world = World({"replicas": 1, "activeDeadlineSeconds": LIMIT_SECONDS})
    refusal = ApiRefusal(text="exceeded quota: gpus", tries=1, not_before=NOW + 1000)
    world.refused = {MASTER_SLOT: refusal, worker(0): refusal}
    world.look()
    world.now += LIMIT_SECONDS
    assert _ends(world.look())
    assert world.condition("Failed")["message"].endswith("QuotaExceeded: exceeded quota: gpus")


def test_it_is_decided_for_good() -> None:
    """A master that comes while the workers go takes nothing back; nor does a new operator."""
    world = _waiting()
    world.look()
    world.now += LIMIT_SECONDS
    world.look()
    world.master = MasterView(connected=True, status=JobStatus(phase=JobPhase.WAITING))
    world.history = {}
    world.now += 5
    made = world.look()
    assert (creates(made), deletes(made)) == ([], {"t-worker-0-0": "JobFinished"})


def test_a_cleanup_that_keeps_all_pods_lets_no_worker_run_on() -> None:
    """No master has told its agent to leave."""
    world = _waiting(cleanup__pods="None")
    world.look()
    world.now += LIMIT_SECONDS
    world.look()
    world.now += 5
    assert deletes(world.look()) == {"t-worker-0-0": "JobFinished"}


def test_a_master_that_is_there_counts_by_itself() -> None:
    """Its time begins later, and it saves the state first."""
    world = _waiting()
    world.change("t-master-0-0", phase=PodPhase.RUNNING, waiting="")
    world.master = MasterView(connected=True, status=JobStatus(phase=JobPhase.WAITING))
    world.look()
    world.now += 10 * LIMIT_SECONDS
    assert world.look().requeue_after is None
    assert world.condition("Failed") == {}


def test_a_master_that_has_begun_and_is_never_reached_gets_a_little_longer() -> None:
    """It may be about to be reached; one whose command is wrong never is."""
    world = _waiting()
    world.change("t-master-0-0", phase=PodPhase.RUNNING, waiting="")
    assert world.look().requeue_after == LIMIT_SECONDS + STARTS_SECONDS
    world.now += LIMIT_SECONDS + STARTS_SECONDS - 1
    world.look()
    assert world.status["conditions"][-1]["type"] != "FailureTarget"
    world.now += 1
    world.look()
    assert world.status["conditions"][-1]["reason"] == "DeadlineExceeded"
    assert world.status["conditions"][-1]["message"].endswith("to end it; it is not reached")


def test_a_new_operator_gives_a_master_that_runs_the_time_to_be_reached() -> None:
    """The wall's clock may be far beyond the master's."""
    world = _waiting()
    world.change("t-master-0-0", phase=PodPhase.RUNNING, waiting="")
    world.look()
    world.now += 1000
    world.first_seen_at = world.now - 1
    world.look()
    world.now += STARTS_SECONDS - 2
    world.look()
    assert world.status["conditions"][-1]["type"] != "FailureTarget"
    world.now += 1
    world.look()
    assert world.status["conditions"][-1]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.RUNNING])
def test_a_master_that_was_there_is_waited_for(phase: PodPhase) -> None:
    """Its clock stands while none lives, and its successor needs time; but not for ever."""
    world = _waiting()
    world.change("t-master-0-0", phase=PodPhase.RUNNING, waiting="")
    world.master = MasterView(connected=True, status=JobStatus(phase=JobPhase.TRAINING))
    world.look()
    world.now += 10 * LIMIT_SECONDS
    world.master = world.master.disconnected(world.now)
    world.change("t-master-0-0", phase=phase)
    assert world.look().requeue_after == pytest.approx(LOST_SECONDS, abs=1)
    world.now += LOST_SECONDS - 1
    world.look()
    assert world.status["conditions"][-1]["type"] != "FailureTarget"
    world.now += 2
    world.look()
    assert world.status["conditions"][-1]["reason"] == "DeadlineExceeded"


def test_the_time_of_a_suspended_job_stands_and_begins_anew() -> None:
    """As the master has it."""
    world = World({"replicas": 1, "activeDeadlineSeconds": LIMIT_SECONDS, "suspend": True})
    assert world.look().requeue_after is None
    world.now += 10 * LIMIT_SECONDS
    assert world.look().requeue_after is None
    world.suspend(False)
    made = world.look()
    assert (creates(made), made.requeue_after) == (["t-master-0-0", "t-worker-0-0"], LIMIT_SECONDS)
    world.now += LIMIT_SECONDS - 1
    world.look()
    assert world.condition("Failed") == {}
    world.now += 1
    assert _ends(world.look())
