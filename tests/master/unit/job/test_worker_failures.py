"""Training processes that die: recovery at once, blame later, one charge."""

from __future__ import annotations

import itertools

import pytest

from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training


def incident(job: SteeredJob, number: int = -1) -> object:
    """An incident of the job."""
    return job.incidents[number]


def test_a_crash_restarts_all_in_place() -> None:
    """The same nodes go on in a new round; the culprit is named and charged once."""
    job = training(2)
    job.agents[1].crash_worker()
    job.run(0.2)
    assert job.is_in("STARTING", "TRAINING")
    job.run_until("TRAINING", limit=1.0)
    assert job.members == [0, 1]
    assert {world.restart_count for *_, world in job.assignments[-2:]} == {1}
    job.run(11.0)
    found = job.incidents[-1]
    assert (found.cause, found.culprit_node, found.culprit_rank) == ("WorkerCrashed", "1", "1")
    assert not found.open
    assert found.steps_redone > 0
    assert job.charges() == [wire.BudgetKind.FAILURES]
    assert job.status.restarts_in_place == 1


GIB = 2**30


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (
            wire.MemoryUse(limit_bytes=16 * GIB, peak_bytes=16 * GIB, current_bytes=1, oom_kills=1),
            "its container's limit is 16.00 GiB, its peak 16.00 GiB; the kernel ended 1 process",
        ),
        (
            wire.MemoryUse(current_bytes=1, oom_kills=2),
            (
                "its container has no limit, so the machine's memory was short; "
                "the kernel ended 2 processes"
            ),
        ),
    ],
)
def test_a_rank_that_the_kernel_ended_for_lack_of_memory_is_named_so(
    memory: wire.MemoryUse, said: str
) -> None:
    """With limit and peak, in event and incident; it is charged like any crash."""
    job = training(2)
    job.agents[1].memory = memory
    job.agents[1].crash_worker()
    job.run(12.0)
    found = job.incidents[-1]
    assert (found.cause, found.culprit_node) == ("OutOfMemory", "1")
    who = "rank 1 on node 1 was ended by signal 9 (SIGKILL)"
    said = f"{who}: out of memory: {said} of it for lack of memory in this round"
    assert found.text == said
    told = job.texts("WorkerFailed")
    assert said in told
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_sigkill_of_somebody_else_is_no_lack_of_memory() -> None:
    """The container's figures alone prove nothing."""
    job = training(2)
    job.agents[1].memory = wire.MemoryUse(limit_bytes=GIB, peak_bytes=GIB, current_bytes=1)
    job.agents[1].crash_worker()
    job.run(12.0)
    found = job.incidents[-1]
    assert found.cause == "WorkerCrashed"
    assert "memory" not in found.text


def test_an_error_beside_a_kill_for_lack_of_memory_says_so() -> None:
    """The kernel ended a data loader: the rank raises, and the cause is its exception."""
    job = training(2)
    job.agents[1].memory = wire.MemoryUse(limit_bytes=GIB, current_bytes=1, oom_kills=1)
    job.agents[1].crash_worker(1, "RuntimeError")
    job.run(12.0)
    found = job.incidents[-1]
    assert found.cause == "WorkerRaised"
    lack = "the kernel ended 1 process of it for lack of memory in this round"
    assert found.text.endswith(f"; its container's limit is 1.00 GiB; {lack}")


@pytest.mark.parametrize("seed", range(12))
def test_the_culprit_is_named_even_when_a_survivor_reports_first(seed: int) -> None:
    """In every order of arrival."""
    job = SteeredJob(job_spec(replicas=3), seed=seed, raises=1.0)
    job.add_agents(3)
    job.run_until("TRAINING")
    job.run(1.0)
    job.agents[2].crash_worker(-11)
    job.run(15.0)
    found = job.incidents
    assert [item.culprit_node for item in found] == ["2"]
    assert [item.cause for item in found] == ["WorkerCrashed"]
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_two_at_once_are_one_incident() -> None:
    """The earlier of two crashes is charged, once."""
    job = training(3)
    job.agents[0].crash_worker()
    job.agents[2].crash_worker()
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert len(job.incidents) == 1
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_crash_while_recovering_is_another_incident() -> None:
    """The first is charged at once, the second without a new step counts as no progress."""
    job = training(2)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 1.0, lambda: job.agents[1].round == 2)
    assert job.is_in("STARTING")
    job.agents[1].crash_worker()
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert job.charges() == [wire.BudgetKind.FAILURES, wire.BudgetKind.NO_PROGRESS]


def budget(kind: wire.BudgetKind, limit: int) -> tuple[wire.Budget, ...]:
    """One budget, the others without limit."""
    return (wire.Budget(kind=kind, limit=limit),)


def test_the_failure_budget_ends_the_job() -> None:
    """One more failure than allowed: the job fails within about a second, and says why."""
    job = training(2, budgets=budget(wire.BudgetKind.FAILURES, 1))
    job.agents[0].crash_worker()
    job.run(13.0)
    assert job.is_in("TRAINING")
    job.agents[0].crash_worker()
    job.run(0.5)
    assert job.is_in("WAITING")
    job.run(3.0)
    assert job.end == "FailureBudgetExhausted"
    assert "failures allows 1" in job.status.text
    assert [outcome for _, outcome in job.outcomes if outcome] == [2, 2]


def test_better_evidence_saves_the_job() -> None:
    """A survivor's exception would exhaust the budget; the preemption behind it does not."""
    job = training(2, budgets=budget(wire.BudgetKind.FAILURES, 0))
    job.raises = 1.0
    agent = job.agents[1]
    agent.crash(told=False)
    job.run(0.3)
    assert job.is_in("WAITING")
    job.operator.ended(agent, wire.PodPhase.GONE, 0)
    job.run(3.0)
    assert not job.end, job.tale()
    job.run(15.0)
    assert job.charges() == [wire.BudgetKind.PREEMPTIONS]


def test_a_torchrun_without_restarts_ends_the_job() -> None:
    """Nobody waits for it in another round, and the reason names it and its failure."""
    job = training(2)
    job.raises = 0.0
    rounds = len(job.assignments)
    job.agents[1].crash_worker(17, final=True)
    job.run(3.0)
    assert job.end == "FailureBudgetExhausted"
    text = job.status.text
    assert "node 1" in text
    assert "--max-restarts" in text
    assert "exit code 17" in text
    assert len(job.assignments) == rounds
    assert job.status.phase is wire.JobPhase.FAILED


def test_a_torchrun_that_gave_up_as_a_survivor_ends_the_job_too() -> None:
    """The culprit was told first; that the other has no restarts left is told later."""
    job = training(2)
    job.agents[1].crash_worker(-9)
    job.agents[0].crash_worker(1, final=True)
    job.run(3.0)
    assert job.end == "FailureBudgetExhausted"
    assert "node 0" in job.status.text


def test_a_preemption_excuses_a_torchrun_without_restarts() -> None:
    """It failed because another node was taken away: that ends no job."""
    job = training(3)
    preempted = job.agents[2]
    job.agents[0].crash_worker(1, final=True)
    preempted.crash(told=False)
    job.run(0.3)
    job.operator.ended(preempted, wire.PodPhase.GONE, 0)
    job.run(3.0)
    assert not job.end, job.tale()


def test_a_loop_without_progress_ends_the_job() -> None:
    """Every round dies before a new step: NoProgress, not the failure budget."""
    job = SteeredJob(job_spec(replicas=2, budgets=budget(wire.BudgetKind.NO_PROGRESS, 3)))
    job.add_agents(2)
    while not job.end:
        job.run_until("TRAINING", limit=5.0)
        job.agents[0].crash_worker(1, "ValueError")
        job.time.run(job.time.now + 5.0, lambda: job.is_in("STARTING", "FAILED"))
    assert job.end == "NoProgress"
    assert job.charges() == [wire.BudgetKind.FAILURES] + [wire.BudgetKind.NO_PROGRESS] * 4


def test_a_new_step_forgives_the_restarts_without_progress() -> None:
    """Charges of no progress are forgotten when the training gets further than before."""
    job = training(2)
    job.agents[0].crash_worker()
    job.run(0.4)
    job.agents[0].crash_worker()
    job.run(0.5)
    job.agents[0].crash_worker()
    job.run(12.0)
    assert wire.BudgetKind.NO_PROGRESS not in job.charges() or job.phase is wire.JobPhase.TRAINING
    job.run(5.0)
    assert job.charges().count(wire.BudgetKind.NO_PROGRESS) <= 1
    job.agents[0].crash_worker()
    job.run(15.0)
    assert job.charges().count(wire.BudgetKind.FAILURES) >= 2


def rule(action: wire.FailureAction, **matcher: object) -> tuple[wire.FailureRule, ...]:
    """The spec's only rule."""
    return (wire.FailureRule(action=action, **matcher),)  # type: ignore[arg-type]


def test_a_rule_can_ignore_a_failure() -> None:
    """Restarted, not charged."""
    job = training(2, failure_rules=rule(wire.FailureAction.IGNORE, exit_codes=(77,)))
    job.agents[0].crash_worker(77)
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert job.charges() == []


def test_a_rule_can_fail_the_job() -> None:
    """After a second in which better evidence may come."""
    job = training(2, failure_rules=rule(wire.FailureAction.FAIL_JOB, exit_codes=(1,)))
    job.raises = 0.0
    job.agents[0].crash_worker(1, "ValueError")
    job.run(0.9)
    assert not job.finished
    job.run(3.0)
    assert job.end == "FailJobRule"


def test_a_fail_rule_does_not_hit_a_survivor() -> None:
    """The survivor's exit code 1 matches the rule; the culprit's signal arrives in time."""
    job = training(2, failure_rules=rule(wire.FailureAction.FAIL_JOB, exit_codes=(1,)))
    job.raises = 1.0
    job.agents[0].crash_worker(-9)
    job.run(15.0)
    assert job.is_in("TRAINING")
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_rule_can_replace_the_pod() -> None:
    """The others go on at once; the culprit's node comes back as a new agent."""
    job = training(3, failure_rules=rule(wire.FailureAction.REPLACE_POD, exit_codes=(137,)))
    before = job.agents[1].agent_id
    job.agents[1].crash_worker(-9)
    job.run(0.5)
    assert job.members == [0, 2]
    job.run(15.0)
    assert sorted(job.members) == [0, 1, 2]
    assert job.agents[1].agent_id != before
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_rule_can_exclude_the_host() -> None:
    """The culprit's Kubernetes node is named to the operator and in the status."""
    rules = rule(wire.FailureAction.REPLACE_ON_OTHER_NODE, log_pattern="ECC error")
    job = training(3, failure_rules=rules)
    job.agents[1].matched = (0, 9)
    job.agents[1].crash_worker(1, "RuntimeError")
    job.run(1.0)
    assert job.status.excluded_nodes == ("k8s-1",)
    assert "NodeExcluded" in job.reasons()
    assert sorted(job.members) == [0, 2]


def test_a_pod_that_the_operator_puts_on_an_excluded_host_takes_part() -> None:
    """It has forgotten the host, as the spec allows; where that pod fails, the host is the newest.

    The simulated operator makes every pod on the host of the one before.
    """
    rules = rule(wire.FailureAction.REPLACE_ON_OTHER_NODE, exit_codes=(9,))
    job = training(3, failure_rules=rules)
    for rank in (1, 2, 1):
        job.agents[rank].crash_worker(9)
        job.run(20.0)
        assert sorted(job.members) == [0, 1, 2]
    assert job.status.excluded_nodes == ("k8s-2", "k8s-1")


def test_without_an_operator_a_replace_rule_restarts_in_place() -> None:
    """Nobody can replace: said in an event."""
    rules = rule(wire.FailureAction.REPLACE_POD, exit_codes=(137,))
    job = started(2, agents={"unmanaged": True}, operator_up=False, failure_rules=rules)
    job.agents[1].crash_worker(-9)
    job.run(2.0)
    assert job.members == [0, 1]
    assert "ReplaceRequested" in job.reasons()


def test_max_restarts_of_the_agents_caps_the_failure_budget() -> None:
    """holdfast-run --max-restarts=0: the first failure ends the job."""
    job = started(2, agents={"unmanaged": True, "max_restarts": 0}, operator_up=False)
    assert {world.max_restarts for *_, world in job.assignments} == {0}
    job.agents[1].crash_worker()
    job.run(4.0)
    assert job.end == "FailureBudgetExhausted"


def test_max_restarts_bounds_restarts_without_progress_too() -> None:
    """A script that fails before its first step: one restart is allowed, and one is made."""
    job = SteeredJob(job_spec(replicas=2, budgets=budget(wire.BudgetKind.NO_PROGRESS, 5)))
    job.add_agents(2, max_restarts=1)
    crash_at_start(job, 2)
    job.run(4.0)
    assert job.end == "FailureBudgetExhausted"
    assert job.status.round == 2


def crash_at_start(job: SteeredJob, times: int) -> list[float]:
    """Let node 0 fail in so many rounds before a step; when each of them began."""
    began: list[float] = []
    for number in range(1, times + 1):
        job.time.run(job.time.now + 60.0, lambda: job.agents[0].round == number)  # noqa: B023
        assert job.agents[0].round == number
        began.append(job.time.now)
        job.agents[0].crash_worker(1, "OSError")
    return began


def test_restarts_without_progress_wait_longer_each_time() -> None:
    """Storage that is away for some seconds does not use up the budget; an event says the pause."""
    job = SteeredJob(job_spec(replicas=2, budgets=budget(wire.BudgetKind.NO_PROGRESS, 5)))
    job.add_agents(2)
    began = crash_at_start(job, 6)
    pauses = [after - before for before, after in itertools.pairwise(began)]
    assert all(pause < 0.5 for pause in pauses[:2])
    assert [round(pause) for pause in pauses[2:]] == [1, 2, 4]
    texts = job.texts("RestartBackoff")
    assert len(texts) == 3
    assert "restart 4 in a row without a new step begins after 4 s" in texts[-1]
    job.run_until("TRAINING", limit=20.0)
    job.run(30.0)
    assert not job.end
    job.agents[0].crash_worker()
    job.run_until("TRAINING", limit=1.0)


def test_a_new_master_goes_on_with_the_pauses() -> None:
    """It reads from the journal how many restarts in a row there were."""
    job = SteeredJob(job_spec(replicas=2, budgets=budget(wire.BudgetKind.NO_PROGRESS, 9)))
    job.add_agents(2)
    crash_at_start(job, 5)
    job.run(0.2)
    job.restart_master()
    job.run(3.0)
    assert not job.is_in("TRAINING")
    job.run(8.0)
    assert job.is_in("TRAINING")


def test_a_stop_does_not_wait_for_the_pause() -> None:
    """The job ends at once."""
    job = SteeredJob(job_spec(replicas=2, budgets=budget(wire.BudgetKind.NO_PROGRESS, 9)))
    job.add_agents(2)
    crash_at_start(job, 7)
    job.run(0.5)
    job.ask(wire.StopJobRequest())
    job.run(2.0)
    assert job.end == "StoppedByUser"


def test_processes_that_vanish_without_a_word_are_an_incident() -> None:
    """An agent that comes back without its processes and says nothing for a second."""
    job = training(2)
    job.raises = 0.0
    job.agents[1].workers.lose()
    job.agents[1].blip()
    job.run(3.0)
    assert job.is_in("TRAINING")
    found = job.incidents[-1]
    assert found.cause == "WorkersMissing"
    assert found.culprit_node == "1"


def test_an_agent_that_stood_still_for_its_lease_is_the_culprit() -> None:
    """Frozen for longer than the lease, shorter than the silence limit."""
    job = training(2)
    job.agents[1].freeze()
    job.time.after(4.5, job.agents[1].thaw)
    job.run(20.0)
    found = job.incidents
    assert [item.cause for item in found] == ["LeaseExpired"]
    assert found[0].culprit_node == "1"
    assert len(job.members) == 2


CLOSED = "RuntimeError: [gloo/tcp/pair.cc:550] Connection closed by peer [127.0.0.1]:41234"


@pytest.mark.parametrize(
    ("error", "rank"),
    [(CLOSED, "1"), ("ValueError: bad luck", "0")],
    ids=["broken-connection", "own-error"],
)
def test_a_rank_that_ends_well_before_the_others_is_named(error: str, rank: str) -> None:
    """A survivor whose connection broke is not to blame; one with an error of its own is."""
    job = training(2)
    kind = error.partition(":")[0]
    for node, message in (
        (1, wire.WorkerExited(exit_code=0, rank=1)),
        (
            0,
            wire.WorkerExited(exit_code=1, error_type=kind, error_message=error),
        ),
    ):
        job.say(node, message)
    job.run(15.0)
    found = job.incidents[-1]
    assert (found.culprit_node, found.culprit_rank, found.cause) == (rank, rank, "WorkerRaised")
    left = "rank 1 on node 1 ended with exit code 0 before the others: rank 0 on node 0 raised"
    assert (left in found.text) is (rank == "1")
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_after_a_restart_rates_and_steps_are_those_of_the_new_round() -> None:
    """The pace before the crash is no news of the round after it, and nothing leaps."""
    job = training(2)
    job.run(10.0)
    before = job.status
    job.agents[0].crash_worker()
    job.run(0.05)
    seen = []
    for _ in range(60):
        job.run(0.1)
        seen.append(job.status)
    begun = [status for status in seen if status.round > before.round]
    assert begun[0].samples_per_second == 0.0
    assert max(status.samples_per_second for status in begun) < 1.5 * before.samples_per_second
    assert begun[-1].samples_per_second > 0.7 * before.samples_per_second
    steps = [status.step for status in begun]
    assert steps == sorted(steps)
    assert max(b - a for a, b in itertools.pairwise(steps)) < 20
