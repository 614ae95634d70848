"""A checkpoint that somebody asks for: one step for all ranks, one answer for each question."""

from __future__ import annotations

import dataclasses

from holdfast_master.instructions import Instruction, RefusalCode, Refuse, Reply, Send
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training

ASK = wire.TriggerCheckpointRequest(reason="before the upgrade")


def _commit(job: SteeredJob, step: int, error: str = "") -> None:
    """Every node has its part of a step on storage, and the coordinator does what it is told."""
    version = wire.CheckpointVersion(lineage=1, step=step)
    size, batch = len(job.members), list[Instruction]()
    for rank in job.members:
        part = wire.ShardsPersisted(
            version=version, world_size=size, ranks=(rank,), root="/r/", attempt="a", bytes=1
        )
        batch += job.say(rank, part)
    (grant,) = (
        item.response.message
        for item in batch
        if isinstance(item, Send) and isinstance(item.response.message, wire.CommitGrant)
    )
    job.say(min(job.members), wire.CommitResult(version=version, own=grant.own, error=error))


def _refusal(job: SteeredJob, number: int) -> Refuse:
    answer = job.answers[number]
    assert isinstance(answer, Refuse), answer
    return answer


def test_all_ranks_save_after_the_same_step_and_the_job_trains_on() -> None:
    """Answered once the step is committed; nobody stops, nothing is charged."""
    job = training(3)
    number = job.ask(ASK)
    job.run(2.0)
    orders = [agent.saves for _, agent in sorted(job.agents.items())]
    assert orders[0] == orders[1] == orders[2]
    ((order,),) = orders[:1]
    assert order.goes_on
    assert number not in job.answers
    _commit(job, order.step)
    path = f"/r/step_{order.step}"
    assert job.answers[number] == Reply(
        number, wire.TriggerCheckpointResponse(step=order.step, path=path)
    )
    job.run(5.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 1
    assert job.charges() == []
    assert job.reasons().count("CheckpointBarrierSet") == 1


def test_two_who_ask_at_once_get_the_same_step() -> None:
    """One save, two answers; later another one."""
    job = training(2)
    numbers = [job.ask(ASK), job.ask(ASK)]
    job.run(1.0)
    step = job.agents[0].saves[-1].step
    _commit(job, step)
    answers = [job.answers[number] for number in numbers]
    assert [getattr(answer, "response", None) for answer in answers] == [
        wire.TriggerCheckpointResponse(step=step, path=f"/r/step_{step}")
    ] * 2
    job.run(2.0)
    later = job.ask(ASK)
    job.run(0.1)
    assert later not in job.answers
    assert job.agents[0].saves[-1].step > step


def test_a_scheduled_step_that_is_newer_than_the_question_answers_it() -> None:
    """Only a committed step beyond the one reached at the request answers it."""
    job = training(2)
    reached = job.status.step
    number = job.ask(ASK)
    _commit(job, reached)
    assert number not in job.answers
    _commit(job, reached + 1)
    assert isinstance(job.answers[number], Reply)


def test_who_joins_later_is_not_told_of_a_step_before_his_question() -> None:
    """A slow commit answers the first who asked, and not the second."""
    job = training(2)
    first = job.ask(ASK)
    started = job.status.step
    job.run(0.6)
    second = job.ask(ASK)
    assert job.status.step > started
    _commit(job, started + 1)
    assert isinstance(job.answers[first], Reply)
    assert second not in job.answers
    order = job.context.checkpoints.order
    assert order is not None
    _commit(job, order.step)
    assert isinstance(job.answers[second], Reply)


def test_who_asks_after_the_step_has_passed_gets_another() -> None:
    """Its commit is still on its way, and would be of before the question."""
    job = training(2)
    first = job.ask(ASK)
    job.run(2.5)
    passed = job.agents[0].saves[-1].step
    assert job.status.step >= passed
    second = job.ask(ASK)
    job.run(0.2)
    later = job.agents[0].saves[-1].step
    assert later > passed
    _commit(job, passed)
    assert isinstance(job.answers[first], Reply)
    assert second not in job.answers
    _commit(job, later)
    assert isinstance(job.answers[second], Reply)


def test_an_agent_that_would_stop_its_ranks_is_not_asked() -> None:
    """One of an older release knows only arms at which ranks stop."""
    job = training(2)
    node = job.context.membership.nodes[1]
    assert node.hello is not None
    node.hello = dataclasses.replace(node.hello, knows_goes_on=False)
    refusal = _refusal(job, job.ask(ASK))
    assert refusal.reason == "CANNOT_SAVE"
    assert "the agent of node 1 is of a release" in refusal.text


def test_a_rank_that_has_passed_the_step_makes_it_a_later_one() -> None:
    """Three times, each further away; then who asked is told."""
    job = training(2)
    number = job.ask(ASK)
    job.run(0.2)
    for _ in range(job.context.settings.barrier_tries):
        order = job.context.checkpoints.order
        assert order is not None
        late = order.step + 1
        job.say(1, wire.BarrierAck(barrier_id=order.number, seen_at_step=late, goes_on=True))
    assert _refusal(job, number).reason == "MISSED"
    steps = [order.step for order in job.agents[0].saves]
    assert steps == sorted(set(steps))
    job.run(3.0)
    assert job.is_in("TRAINING")


def test_a_node_that_was_away_is_told_when_it_is_back() -> None:
    """Its ranks save with the others, or a later step is set for all."""
    job = training(2)
    job.agents[1].cut_off()
    job.run(0.3)
    job.ask(ASK)
    job.run(0.1)
    assert job.agents[1].saves == []
    job.agents[1].reachable()
    job.run(3.0)
    assert job.agents[1].saves[-1] == job.agents[0].saves[-1]


def test_an_order_ends_with_its_round() -> None:
    """Nobody waits for a step that no rank will reach."""
    job = training(2)
    number = job.ask(ASK)
    job.agents[0].crash_worker()
    job.run(1.0)
    refusal = _refusal(job, number)
    assert (refusal.code, refusal.reason) == (RefusalCode.ABORTED, "ROUND_ENDED")
    assert job.context.checkpoints.order is None


def test_a_barrier_on_its_way_takes_the_orders_place() -> None:
    """The ranks save there anyway: that step is the answer."""
    job = training(3)
    number = job.ask(ASK)
    job.ask(wire.DrainNodeRequest(node_rank=2))
    assert _refusal(job, job.ask(ASK)).reason == "NOT_TRAINING"
    barrier = job.context.worlds.barrier
    assert barrier is not None
    _commit(job, barrier.step)
    assert isinstance(job.answers[number], Reply)


def test_what_cannot_be_saved_is_refused_at_once() -> None:
    """No round, no SDK, a wait that is none: each says what to do."""
    waiting = SteeredJob(job_spec())
    assert _refusal(waiting, waiting.ask(ASK)).reason == "NOT_TRAINING"
    plain = started(2, agents={"sdk": False})
    assert "no rank reports steps" in _refusal(plain, plain.ask(ASK)).text
    torchrun = started(2, agents={"keeps_checkpoints": False})
    assert "plain torchrun" in _refusal(torchrun, torchrun.ask(ASK)).text
    job = training(2)
    for seconds in (-1.0, 3601.0, float("nan")):
        refusal = _refusal(job, job.ask(wire.TriggerCheckpointRequest(timeout_seconds=seconds)))
        assert (refusal.code, refusal.reason) == (
            RefusalCode.INVALID_ARGUMENT,
            "TIMEOUT_OUT_OF_BOUNDS",
        )


def test_a_failed_commit_is_the_answer() -> None:
    """In the coordinator's words."""
    job = training(2)
    number = job.ask(ASK)
    job.run(1.0)
    _commit(job, job.agents[0].saves[-1].step, error="no space left on device")
    refusal = _refusal(job, number)
    assert refusal.reason == "CHECKPOINT_FAILED"
    assert "no space left on device" in refusal.text


def test_a_script_that_does_not_save_is_named_after_the_wait() -> None:
    """The remedy comes with it, and the next question is a new order."""
    job = training(2)
    number = job.ask(wire.TriggerCheckpointRequest(timeout_seconds=5.0))
    job.run(6.0)
    refusal = _refusal(job, number)
    assert refusal.code is RefusalCode.DEADLINE_EXCEEDED
    assert "holdfast.Checkpointer" in refusal.text
    assert job.context.checkpoints.order is None


def test_a_script_without_a_checkpointer_is_named_soon_after_the_step() -> None:
    """Nobody waits five minutes for ranks that have passed the step and save nothing."""
    job = training(2)
    number = job.ask(ASK)
    job.run(20.0)
    refusal = _refusal(job, number)
    assert (refusal.code, refusal.reason) == (RefusalCode.FAILED_PRECONDITION, "CANNOT_SAVE")
    assert "holdfast.Checkpointer" in refusal.text
    assert job.context.checkpoints.order is None
    assert job.is_in("TRAINING")


def test_a_save_that_has_begun_is_waited_for() -> None:
    """One node has its part in memory: storage may be slow, and the commit is the answer."""
    job = training(2)
    number = job.ask(ASK)
    job.run(2.0)
    step = job.agents[0].saves[-1].step
    job.say(0, wire.MemoryCheckpoints(versions=(wire.CheckpointVersion(lineage=1, step=step),)))
    job.run(60.0)
    assert number not in job.answers
    _commit(job, step)
    assert isinstance(job.answers[number], Reply)


def test_a_job_whose_checkpoints_live_in_memory_only_is_refused_at_once() -> None:
    """Its ranks named no directory: nobody waits for a step that can never be on storage."""
    job = training(2)
    version = wire.CheckpointVersion(lineage=1, step=job.status.step)
    for rank in (0, 1):
        job.say(rank, wire.MemoryCheckpoints(versions=(version,), memory_only=True))
    refusal = _refusal(job, job.ask(ASK))
    assert (refusal.code, refusal.reason) == (RefusalCode.FAILED_PRECONDITION, "CANNOT_SAVE")
    assert "the ranks named no directory" in refusal.text
    assert "CheckpointRequested" not in job.reasons()
    for rank in (0, 1):
        job.say(rank, wire.MemoryCheckpoints(versions=(version,)))
    number = job.ask(ASK)
    job.run(0.1)
    assert number not in job.answers
