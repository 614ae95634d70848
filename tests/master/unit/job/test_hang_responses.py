"""Hangs under mode Act: the incident, the next round, nodes that leave, and the bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import pytest

from holdfast_master.inputs import OperatorMessage
from holdfast_wire.messages import (
    Budget,
    BudgetKind,
    CollectEvidence,
    DrainNodeRequest,
    EvidenceCollected,
    GroupTail,
    HangPolicy,
    HealthMode,
    HealthPolicy,
    RankEvidence,
    StopJobRequest,
)
from holdfast_wire.reasons import Cause, EventReason
from simulation.steered.job import SteeredJob

Start = Callable[..., SteeredJob]

ACT = HealthPolicy(
    hang=HangPolicy(
        mode=HealthMode.ACT, step_time_factor=10.0, min_seconds=8.0, first_step_seconds=60.0
    )
)
PEERS = '  File "torch/distributed/distributed_c10d.py", line 1 in all_reduce'
WAITS = RankEvidence(
    pid=1,
    process_state="S",
    observed_seconds=1.0,
    server_answered=True,
    gil_free=True,
    stack=PEERS,
)
STOPPED = RankEvidence(pid=1, process_state="T", kernel_function="do_signal_stop")
STUCK = RankEvidence(pid=1, process_state="D", kernel_function="nfs_wait_bit_killable")
GONE = RankEvidence()
LOADS = dataclasses.replace(
    WAITS, stack='  File "/v/torch/utils/data/dataloader.py", line 1 in _try_get_data'
)
READS = dataclasses.replace(LOADS, moved_bytes=1 << 18)
SAVES = dataclasses.replace(
    WAITS, stack='  File "/v/torch/serialization.py", line 1 in _save', moved_bytes=1 << 18
)


def _told(job: SteeredJob, reason: str) -> list[str]:
    return [event.text for event in job.core.events_after(0, 100_000) if event.reason == reason]


def _failures(job: SteeredJob) -> list[tuple[str, str]]:
    """Cause and culprit of what ended a world; what is only reported, or planned, did not."""
    incidents = job.core.goodput(job.moment()).incidents
    ended = [one for one in incidents if one.cause != "Rescaled" and not one.reported_only]
    return [(one.cause, one.culprit_node) for one in ended]


def _asked(job: SteeredJob) -> CollectEvidence:
    return [sent for _, sent in job.sent if isinstance(sent, CollectEvidence)][-1]


def _hang(job: SteeredJob, *, pause: int = 0) -> CollectEvidence:
    """Have the world stand still until all agents are asked; the test answers for them."""
    for agent in job.agents.values():
        agent.ignores = (*agent.ignores, CollectEvidence)
    before = sum(isinstance(sent, CollectEvidence) for _, sent in job.sent)
    workers = job.agents[pause].workers
    workers.pause(paused=True)
    workers.paused = False  # the processes of its next round run
    for _ in range(100):
        job.run(1.0)
        if sum(isinstance(sent, CollectEvidence) for _, sent in job.sent) > before:
            return _asked(job)
    raise AssertionError(job.tale())


def _answer(
    job: SteeredJob,
    order: CollectEvidence,
    odd: Mapping[int, RankEvidence],
    operations: Mapping[int, str] = {},
) -> None:
    """Send each node's evidence; of those that are not named: waits for its peers.

    operations: what nodes issue last, where that is not what the others do.
    """
    everybody = tuple(range(len(job.members)))
    for rank, node in enumerate(job.members):
        operation = operations.get(node, "gloo:all_reduce")
        tails = (GroupTail(group="0", ranks=everybody, sequence=9, operation=operation),)
        seen = dataclasses.replace(odd.get(node, WAITS), rank=rank, groups=tails)
        agent = job.agents[node]
        message = EvidenceCollected(command_id=order.command_id, ranks=(seen,))
        agent.report(message, agent.accepted.round)


def _hosts(job: SteeredJob) -> None:
    for rank in job.agents:
        job.pods[rank] = dataclasses.replace(job.pods[rank], node=f"gpu-{rank}")
        job.take(OperatorMessage(job.pods[rank]))


def test_odd_ranks_are_restarted_on_their_nodes(training: Start) -> None:
    """After the evidence, as one failure with its own cause."""
    job = training(3, health=ACT)
    order = _hang(job)
    assert not _failures(job)
    _answer(job, order, {1: STOPPED})
    job.run(15.0)
    assert _failures(job) == [("Hung", "1")]
    assert job.members == [0, 1, 2]
    assert job.core.status(job.moment()).round == 2
    assert job.charges() == [BudgetKind.FAILURES]
    (text,) = _told(job, EventReason.INCIDENT_OPENED)
    assert "hang: stopped: rank 1" in text
    assert job.reasons().count("NodeDraining") == 0


def test_ranks_of_two_nodes_that_contradict_each_other_are_laid_to_no_node(
    training: Start,
) -> None:
    """One of the two left the path, and nothing tells which: no host gets a strike."""
    job = training(2, health=ACT)
    _hosts(job)
    _answer(job, _hang(job), {}, {1: "gloo:broadcast"})
    job.run(15.0)
    (text,) = _told(job, EventReason.HANG_FOUND)
    assert text.startswith("mismatched collective: rank 0 ")
    assert "; rank 1 " in text
    assert _failures(job) == [("Hung", "")]
    assert job.core.status(job.moment()).round == 2
    assert not job.core.inspect().state.strikes


def test_the_incident_that_ended_the_world_names_the_one_with_the_stacks(training: Start) -> None:
    """The hang was reported first, and is over with its world."""
    job = training(3, health=ACT)
    _answer(job, _hang(job), {1: STOPPED})
    job.run(15.0)
    listed = {one.cause: one for one in job.core.incidents(job.moment())}
    hang, hung = listed[Cause.HANG], listed[Cause.HUNG]
    assert f"incident {hang.id} has the stacks" in hung.text
    assert (hang.open, hang.charged) == (False, BudgetKind.UNSPECIFIED)
    assert hang.decided_seconds > 0


def test_a_world_is_not_ended_before_its_evidence_is_there(training: Start) -> None:
    """As long as one node may still answer."""
    job = training(3, health=ACT)
    order = _hang(job)
    for node in (0, 1):
        agent = job.agents[node]
        seen = dataclasses.replace(STOPPED if node == 1 else WAITS, rank=node)
        agent.report(EvidenceCollected(command_id=order.command_id, ranks=(seen,)), 1)
    job.run(2.0)
    assert not _failures(job)
    job.run(15.0)
    assert _failures(job) == [("Hung", "1")]


def test_a_world_that_went_on_while_evidence_was_awaited_is_left_alone(training: Start) -> None:
    """Its ranks are at work again although the evidence names one of them."""
    job = training(3, health=ACT)
    order = _hang(job)
    job.agents[0].workers.pause(paused=False)
    _answer(job, order, {1: STOPPED})
    job.run(30.0)
    assert not _failures(job)
    assert job.core.status(job.moment()).round == 1


def test_a_node_in_d_state_is_left_and_its_host_avoided(training: Start) -> None:
    """Its process cannot be killed: the others go on, and another pod is asked for."""
    job = training(3, min_replicas=2, health=ACT)
    _hosts(job)
    before = job.agents[2].pod_uid
    order = _hang(job)
    _answer(job, order, {2: STUCK})
    job.run(2.0)
    assert job.members == [0, 1]
    assert _failures(job) == [("Hung", "2")]
    assert "SIGKILL may not end it" in _told(job, EventReason.INCIDENT_OPENED)[0]
    assert job.core.status(job.moment()).excluded_nodes == ("gpu-2",)
    job.run(40.0)
    assert job.agents[2].pod_uid != before
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == [BudgetKind.FAILURES]


def test_an_agent_without_its_process_is_replaced(training: Start) -> None:
    """Its host is as good as any."""
    job = training(3, min_replicas=2, health=ACT)
    _hosts(job)
    before = job.agents[2].pod_uid
    _answer(job, _hang(job), {2: GONE})
    job.run(40.0)
    assert job.agents[2].pod_uid != before
    assert sorted(job.members) == [0, 1, 2]
    assert not job.core.status(job.moment()).excluded_nodes


def test_a_hang_of_nobody_is_restarted_once(training: Start) -> None:
    """The second time at the same step the world is left alone, and people are told."""
    job = training(2, health=ACT)
    order = _hang(job)
    job.agents[0].workers.paused = True  # and so do those of the next round
    _answer(job, order, {})
    job.run(5.0)
    assert _failures(job) == [("Hung", "")]
    _answer(job, _hang(job), {})
    job.run(60.0)
    assert _failures(job) == [("Hung", "")]
    (text,) = _told(job, EventReason.HANG_LEFT)
    assert "a restart has not helped" in text
    assert job.core.status(job.moment()).round == 2


def test_hangs_that_come_back_spend_the_budget(training: Start) -> None:
    """As failures do; then the job ends."""
    budgets = tuple(
        Budget(kind=kind, limit=1 if kind is BudgetKind.FAILURES else 1000)
        for kind in (BudgetKind.FAILURES, BudgetKind.PREEMPTIONS, BudgetKind.RESCALES)
    )
    job = training(2, health=ACT, budgets=budgets)
    for _ in range(2):
        job.run_until("TRAINING")
        job.run(12.0)
        _answer(job, _hang(job), {1: STOPPED})
        job.run(1.0)
    job.run(60.0)
    assert job.end == "FailureBudgetExhausted"


@pytest.mark.parametrize("mode", [HealthMode.REPORT, HealthMode.DISABLED])
def test_other_modes_end_nothing(training: Start, mode: HealthMode) -> None:
    """Report says it; Disabled does not look."""
    hang = dataclasses.replace(ACT.hang, mode=mode)  # type: ignore[type-var]
    job = training(2, health=HealthPolicy(hang=hang))
    job.agents[0].workers.pause(paused=True)
    job.run(60.0)
    assert not _failures(job)
    assert job.core.status(job.moment()).round == 1


@pytest.mark.parametrize("after", [0.0, 0.003, 0.3, 3.0])
def test_a_new_master_answers_a_hang_once(training: Start, after: float) -> None:
    """Killed before, in or after the answer: one incident, one charge."""
    job = training(3, min_replicas=2, health=ACT)
    _hosts(job)
    _answer(job, _hang(job), {2: STUCK})
    job.run(after)
    job.kill_master()
    job.run(0.5)
    job.start_master()
    if not _failures(job):
        _answer(job, _hang(job), {2: STUCK})
    job.run(60.0)
    assert _failures(job) == [("Hung", "2")]
    assert job.charges() == [BudgetKind.FAILURES]
    assert job.reasons().count("NodeExcluded") == 1
    assert sorted(job.members) == [0, 1, 2]


def test_what_all_ranks_wait_for_is_left_alone(training: Start) -> None:
    """Each begins an epoch slowly: a restart would have them wait again."""
    job = training(3, health=ACT)
    _answer(job, _hang(job), dict.fromkeys(range(3), LOADS))
    job.run(60.0)
    assert not _failures(job)
    assert "would meet the same" in _told(job, EventReason.HANG_LEFT)[0]
    assert job.core.status(job.moment()).round == 1


def test_a_save_whose_bytes_move_is_never_cut(training: Start) -> None:
    """It is not even told before a first step would be; then it is told, and left alone."""
    job = training(3, health=ACT)
    began = job.moment().unix
    for _ in range(2):
        _answer(job, _hang(job), {1: SAVES})
        job.agents[0].workers.paused = True
    assert job.moment().unix - began > 60
    job.run(20.0)
    assert not _failures(job)
    assert len(_told(job, EventReason.HANG_FOUND)) == 1
    assert "makes progress" in _told(job, EventReason.HANG_LEFT)[0]


def test_what_an_answer_has_cost_is_waited_before_the_next(training: Start) -> None:
    """A wait of that length may end by itself, as each epoch's first batch does."""
    job = training(3, health=ACT)
    _answer(job, _hang(job), {1: LOADS})
    job.run(20.0)
    assert _failures(job) == [("Hung", "1")]
    (first,) = job.core.inspect().health.answered
    assert first.cost_seconds > 8.0
    _answer(job, _hang(job), {1: LOADS})
    job.run(first.cost_seconds - 4.0)
    assert len(_failures(job)) == 1
    job.run(10.0)
    assert len(_failures(job)) == 2


def test_a_hang_that_comes_back_before_new_progress_is_answered_again(training: Start) -> None:
    """Its first answer cost no more than until the second hang began: the budget decides."""
    job = training(3, health=ACT)
    order = _hang(job)
    job.agents[0].workers.paused = True  # and so do those of the next round
    _answer(job, order, {1: LOADS})
    job.run(5.0)
    assert _failures(job) == [("Hung", "1")]
    _answer(job, _hang(job), {1: LOADS})
    job.run(40.0)
    assert _failures(job) == [("Hung", "1")] * 2
    first, _ = job.core.inspect().health.answered
    assert first.cost_seconds < 20.0


def test_a_pause_that_ended_by_itself_is_known_in_the_next_world(training: Start) -> None:
    """Its epochs begin as slowly."""
    hang = dataclasses.replace(ACT.hang, mode=HealthMode.REPORT)  # type: ignore[type-var]
    job = training(3, health=HealthPolicy(hang=hang))
    _answer(job, _hang(job), {1: LOADS})
    job.run(6.0)
    job.agents[0].workers.pause(paused=False)
    job.run(5.0)
    longest = job.core.inspect().health.hang_watch.learned.longest_pause
    assert longest > 12.0
    job.core.inspect().health.begin(2)
    assert job.core.inspect().health.hang_watch.learned.longest_pause == longest


def test_a_hang_lasts_from_the_last_step_on(training: Start) -> None:
    """It was seen seconds later."""
    job = training(3, health=ACT)
    job.run(5.0)
    stopped = job.moment().unix
    _answer(job, _hang(job), {1: STOPPED})
    job.run(1.0)
    hang = next(one for one in job.core.incidents(job.moment()) if one.cause == Cause.HANG)
    assert hang.opened_unix == pytest.approx(stopped, abs=2.0)


def test_a_drain_during_a_reported_hang_tries_the_barrier(training: Start) -> None:
    """The ranks may be at work that nobody has told, and then all save."""
    hang = dataclasses.replace(ACT.hang, mode=HealthMode.REPORT)  # type: ignore[type-var]
    job = training(3, health=HealthPolicy(hang=hang))
    _answer(job, _hang(job), {1: LOADS})
    job.run(3.0)
    assert _told(job, EventReason.HANG_FOUND)
    job.ask(DrainNodeRequest(node_rank=1))
    assert "BarrierSet" in job.reasons()
    job.agents[0].workers.pause(paused=False)
    job.run(20.0)
    assert "BarrierMissed" not in job.reasons()
    assert job.members == [0, 2]


def test_a_job_that_hangs_is_stopped_without_a_barrier(training: Start) -> None:
    """No rank comes to another step; and the hang is not over because the job stops."""
    hang = dataclasses.replace(ACT.hang, mode=HealthMode.REPORT)  # type: ignore[type-var]
    job = training(3, health=HealthPolicy(hang=hang))
    _answer(job, _hang(job), {1: STOPPED})
    job.run(3.0)
    job.ask(StopJobRequest())
    job.run(8.0)
    assert "BarrierSet" not in job.reasons()
    assert not _told(job, EventReason.HANG_OVER)
    assert job.end == "StoppedByUser"


def _left_while_bytes_move(training: Start) -> SteeredJob:
    """Return a job that is left alone as rank 1 waits for bytes, after `firstStepSeconds`."""
    job = training(3, health=ACT)
    for _ in range(2):
        _answer(job, _hang(job), {1: READS})
    job.run(5.0)
    assert "makes progress" in _told(job, EventReason.HANG_LEFT)[0]
    return job


def test_bytes_that_stop_end_the_patience(training: Start) -> None:
    """The ranks are looked at each minute, under a new number, and people hear once of each."""
    job = _left_while_bytes_move(training)
    order = _hang(job)
    assert order.command_id == 3
    _answer(job, order, {1: READS})
    job.run(20.0)
    assert not _failures(job)
    order = _hang(job)
    assert order.command_id == 4
    _answer(job, order, {1: LOADS})
    job.run(15.0)
    assert _failures(job) == [("Hung", "1")]
    assert len(_told(job, EventReason.HANG_LEFT)) == 1
    assert len(_told(job, EventReason.HANG_FOUND)) == 1


def test_a_later_look_that_shows_less_takes_nothing_back(training: Start) -> None:
    """Of an agent that does not answer in time: nobody is restarted for lack of evidence."""
    job = _left_while_bytes_move(training)
    before = job.core.health(job.moment()).hang
    order = _hang(job)
    agent = job.agents[0]
    agent.report(EvidenceCollected(command_id=order.command_id, ranks=(WAITS,)), 1)
    job.run(20.0)
    after = job.core.health(job.moment()).hang
    assert before is not None
    assert after is not None
    assert (after.cause, after.ranks) == (before.cause, before.ranks) == ("data loader", (1,))
    assert not _failures(job)
    assert _hang(job).command_id > order.command_id


def test_late_evidence_of_an_earlier_look_is_no_news(training: Start) -> None:
    """It shows what was."""
    job = _left_while_bytes_move(training)
    order = _hang(job)
    _answer(job, dataclasses.replace(order, command_id=order.command_id - 1), {1: STOPPED})
    job.run(15.0)
    assert not _failures(job)


def test_one_rank_that_stays_behind_all_others_is_restarted(training: Start) -> None:
    """All waited for their data, and all but one have it: that one no longer shares it."""
    job = training(3, health=ACT)
    _answer(job, _hang(job), dict.fromkeys(range(3), LOADS))
    job.run(20.0)
    assert "would meet the same" in _told(job, EventReason.HANG_LEFT)[0]
    _answer(job, _hang(job), {1: LOADS})
    job.run(15.0)
    assert _failures(job) == [("Hung", "1")]


def _waits_for_its_turn(training: Start) -> SteeredJob:
    """Return a job whose second hang waits, for as long as the answer to the first has cost."""
    job = training(3, health=ACT)
    _answer(job, _hang(job), {1: LOADS})
    job.run(20.0)
    job.core.inspect().health.answered[0].cost_seconds = 100.0
    _answer(job, _hang(job), {1: LOADS})
    job.run(20.0)
    assert len(_failures(job)) == 1
    return job


def test_who_waits_for_an_answer_is_looked_at_again(training: Start) -> None:
    """What moves by then is at work."""
    job = _waits_for_its_turn(training)
    _answer(job, _hang(job), {1: READS})
    job.run(100.0)
    assert len(_failures(job)) == 1
    assert "makes progress" in _told(job, EventReason.HANG_LEFT)[0]


def test_a_rank_that_ends_well_while_an_answer_waits_is_not_run_again(training: Start) -> None:
    """The verdict is of before its end."""
    job = _waits_for_its_turn(training)
    job.agents[2].workers.exit(0, 0)
    job.run(100.0)
    assert len(_failures(job)) == 1
    assert "a finished script" in _told(job, EventReason.HANG_LEFT)[0]


def test_a_hang_that_people_know_is_not_forgotten_at_a_later_look(training: Start) -> None:
    """Its ranks are at work now, and have not made a step since."""
    hang = dataclasses.replace(ACT.hang, first_step_seconds=300.0)  # type: ignore[type-var]
    job = training(3, health=HealthPolicy(hang=hang))
    _answer(job, _hang(job), dict.fromkeys(range(3), LOADS))
    job.run(20.0)
    _answer(job, _hang(job), dict.fromkeys(range(3), READS))
    job.run(20.0)
    assert job.core.health(job.moment()).hang is not None
    assert not _told(job, EventReason.HANG_OVER)
    _hang(job)
    assert not _failures(job)
