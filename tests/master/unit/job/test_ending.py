"""Success, failure, stop, suspend: everybody is told, once."""

from __future__ import annotations

import pytest

from holdfast_master.inputs import OperatorConnected
from holdfast_master.instructions import Finished, Refuse, Reply, SendToOperator
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, training


def finish(job: SteeredJob, steps: int = 10) -> None:
    """Let the script come to its end."""
    job.training.retarget(job.step(job.state.round) + steps)


def test_success_when_all_ranks_have_ended_apart() -> None:
    """Leave with success to all, then the phase, the decision, the last word."""
    job = training(3)
    finish(job)
    job.run_until("SUCCEEDED", limit=10.0)
    assert {outcome for _, outcome in job.outcomes} == {wire.LeaveOutcome.SUCCEEDED}
    assert job.operator.finish is not None
    assert (job.operator.finish.succeeded, job.operator.finish.reason) == (True, "Succeeded")
    assert job.finished == Finished(succeeded=True, reason="Succeeded")
    status = job.status
    assert status.finished_unix > status.started_unix
    assert job.core.next_deadline() is None


def test_a_rank_that_fails_after_others_finished_brings_them_back() -> None:
    """The finished nodes rejoin the new round; success comes later."""
    job = training(3)
    slow = job.agents[2]
    slow.finishes = False
    finish(job)
    job.time.run(job.time.now + 10.0, lambda: len(job.state.finished) == 2)
    states = [node.state for node in job.core.nodes(job.moment())]
    assert states.count(wire.NodeState.FINISHED) == 2
    slow.crash_worker()
    slow.finishes = True
    job.time.run(job.time.now + 1.0, lambda: job.is_in("STARTING"))
    assert job.members == [0, 1, 2]
    assert not job.state.finished
    job.run_until("SUCCEEDED", limit=10.0)


def test_a_finished_node_that_goes_is_not_missed() -> None:
    """Its work is done; the others end the job."""
    job = training(2)
    slow = job.agents[1]
    slow.finishes = False
    finish(job)
    job.time.run(job.time.now + 10.0, lambda: len(job.state.finished) == 1)
    job.agents[0].crash()
    job.run(1.0)
    assert job.is_in("TRAINING")
    slow.finish()
    job.run_until("SUCCEEDED", limit=10.0)


@pytest.mark.parametrize("policy", [wire.SuccessPolicy.ANY_WORKER, wire.SuccessPolicy.RANK0])
def test_one_rank_can_be_enough(policy: wire.SuccessPolicy) -> None:
    """The others are told to leave with success."""
    job = training(3, success_policy=policy)
    for rank in (1, 2):
        job.agents[rank].finishes = False
    finish(job)
    job.run_until("SUCCEEDED", limit=10.0)
    assert len(job.outcomes) == 3


def test_success_closes_and_charges_what_is_open() -> None:
    """A crash a moment before the end is still charged."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(1.0)
    finish(job)
    job.run_until("SUCCEEDED", limit=10.0)
    incidents = job.incidents
    assert [item.open for item in incidents] == [False]
    assert len(job.charges()) == 1


def test_a_script_that_ends_before_its_first_step_succeeds() -> None:
    """It restored the last step: nothing was left to do."""
    job = SteeredJob(job_spec(replicas=2), target=0)
    job.add_agents(2)
    job.run_until("SUCCEEDED", limit=10.0)


def test_stop_by_a_user_saves_first() -> None:
    """A barrier, then SIGTERM with its grace; the job has not succeeded."""
    job = training(2)
    number = job.ask(wire.StopJobRequest(reason="enough"))
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert answer.response == wire.StopJobResponse()
    job.run_until("FAILED", limit=10.0)
    assert job.end == "StoppedByUser"
    assert {outcome for _, outcome in job.outcomes} == {wire.LeaveOutcome.RELEASED}
    assert "BarrierReached" in job.reasons()
    assert job.training.redone == 0


def test_stop_now_skips_the_barrier() -> None:
    """Also when a slower stop is on its way."""
    job = training(2)
    job.ask(wire.StopJobRequest())
    job.ask(wire.StopJobRequest(now=True))
    job.run(0.5)
    assert job.is_in("FAILED")
    assert "BarrierReached" not in job.reasons()


def test_the_last_step_is_that_of_the_last_world() -> None:
    """After a rollback that is less than the best."""
    job = training(3)
    job.run(30.0)
    best = job.status.step
    job.agents[0].crash_worker()
    job.training.saved = 0
    job.run_until("TRAINING", limit=20.0)
    job.run(3.0)
    job.ask(wire.StopJobRequest(now=True))
    job.run_until("FAILED", limit=60.0)
    assert 0 < job.status.step < best


def test_stop_by_the_operator() -> None:
    """Its grace is the barrier's and the agents'."""
    job = training(2)
    job.stop(grace=10.0)
    job.run_until("FAILED", limit=12.0)
    assert job.end == "StoppedByOperator"
    assert job.status.text == "test"


def test_stop_without_a_world_is_at_once() -> None:
    """Nothing runs, nothing is saved."""
    job = SteeredJob(job_spec())
    job.add_agents(1)
    job.run(1.0)
    job.stop(grace=30.0)
    job.run(1.0)
    assert job.end == "StoppedByOperator"


def test_an_agent_that_does_not_leave_is_not_waited_for_for_ever() -> None:
    """Its grace and a little more."""
    job = training(2)
    job.agents[1].freeze()
    job.ask(wire.StopJobRequest(now=True))
    job.run(4.0)
    assert job.is_in("STOPPING")
    job.run(40.0)
    assert job.is_in("FAILED")


def test_hellos_during_the_end_are_sent_away() -> None:
    """A newcomer and one that was away are both told."""
    job = training(2)
    job.agents[1].cut_off()
    job.run(0.5)
    job.agents[0].freeze()
    job.ask(wire.StopJobRequest(now=True))
    job.agents[1].reachable()
    job.add_agent(2)
    job.run(2.0)
    assert job.is_in("STOPPING")
    assert {rank for rank, _ in job.outcomes} == {1, 2}


def test_requests_after_the_end_are_refused() -> None:
    """With the reason of the end; a stop is always fine."""
    job = training(2)
    job.ask(wire.StopJobRequest(now=True))
    job.run(1.0)
    refused = job.answers[job.ask(wire.DrainNodeRequest(node_rank=0))]
    assert isinstance(refused, Refuse)
    assert refused.reason == "JOB_ENDED"
    assert isinstance(job.answers[job.ask(wire.StopJobRequest())], Reply)


def test_an_operator_that_comes_after_the_end_is_told() -> None:
    """The decision is repeated to a new stream."""
    job = training(2)
    job.operator.leave()
    job.ask(wire.StopJobRequest(now=True))
    job.run(1.0)
    assert job.operator.finish is None
    batch = job.take(OperatorConnected())
    told = [item.response.message for item in batch if isinstance(item, SendToOperator)]
    assert [type(message) for message in told].count(wire.FinishDecision) == 1


def test_the_active_deadline_ends_the_job() -> None:
    """Of the job's own time."""
    job = SteeredJob(job_spec(replicas=2, active_deadline_seconds=20.0))
    job.add_agents(2)
    job.run(19.0)
    assert job.is_in("TRAINING")
    job.run(3.0)
    assert job.end == "DeadlineExceeded"


def test_suspend_saves_and_releases_and_resume_goes_on() -> None:
    """Not a step is lost; the active deadline begins anew."""
    job = training(2, active_deadline_seconds=30.0)
    job.operator.change(suspend=True)
    job.run(5.0)
    assert job.is_in("SUSPENDED")
    assert {outcome for _, outcome in job.outcomes} == {wire.LeaveOutcome.RELEASED}
    job.run(60.0)
    assert job.is_in("SUSPENDED")
    job.operator.change(suspend=False)
    job.run_until("TRAINING", limit=10.0)
    job.run(5.0)
    assert job.training.redone == 0
    assert job.charges() == []
    job.run(25.0)
    assert job.end == "DeadlineExceeded"


def test_suspend_while_waiting_is_at_once() -> None:
    """Nothing runs; agents that come are let in and wait."""
    job = SteeredJob(job_spec())
    job.operator.change(suspend=True)
    assert job.is_in("SUSPENDED")
    job.add_agents(4)
    job.run(3.0)
    assert job.is_in("SUSPENDED")
    assert not job.assignments
    job.operator.change(suspend=False)
    job.run_until("TRAINING", limit=5.0)


def test_stop_while_suspended() -> None:
    """The end from where nothing runs."""
    job = training(2)
    job.operator.change(suspend=True)
    job.run(5.0)
    job.ask(wire.StopJobRequest())
    job.run(1.0)
    assert job.end == "StoppedByUser"


def test_a_rank_that_hangs_after_its_last_step_is_told_and_can_be_stopped() -> None:
    """Its exit hooks do not end, say: the others have finished, and a stop does not wait for it."""
    job = training(2)
    job.agents[1].finishes = False
    finish(job)
    job.time.run(job.time.now + 10.0, lambda: len(job.state.finished) == 1)
    hung = wire.RankProgress(
        round=1, step=5, step_seconds=0.1, has_sdk=True, first_step=1, since_step_seconds=60.0
    )
    job.say(1, wire.Heartbeat(ranks=(hung,)))
    assert "StepStalled" in job.reasons()
    job.ask(wire.StopJobRequest())
    job.run_until("FAILED", limit=10.0)
    assert job.end == "StoppedByUser"


def test_an_end_that_somebody_wanted_is_no_failure_in_the_events() -> None:
    """It is said as what it is, and not as an error."""
    job = training(2)
    job.ask(wire.StopJobRequest(reason="enough"))
    job.run_until("FAILED", limit=60.0)
    (told,) = [e for e in job.core.events_after(0, 1000) if e.reason == "JobStopped"]
    assert told.severity is wire.EventSeverity.NORMAL
    assert "enough" in told.text
    assert "JobFailed" not in job.reasons()
