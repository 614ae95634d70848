"""Messages that come twice, too late, or from where nobody expected them."""

from __future__ import annotations

import pytest

from holdfast_master.inputs import Connected
from holdfast_master.instructions import Refuse, Send
from holdfast_master.job.state.world import World
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training


def test_messages_about_other_rounds_change_nothing() -> None:
    """Late ones of older rounds, early ones of rounds that do not exist."""
    job = training(2)
    before = job.core.newest_event()
    for number in (0, 7):
        job.say(0, wire.RoundStarted(first_step=True, step=99), number)
        job.say(0, wire.RoundStopped(), number)
        job.say(0, wire.WorkerExited(exit_code=1), number)
        job.say(0, wire.WorkerExited(exit_code=0), number)
        job.say(0, wire.Heartbeat(ranks=(wire.RankProgress(round=number, step=10**6),)), number)
    job.say(0, wire.Heartbeat())
    job.say(0, wire.WorkerExited(exit_code=0, local_rank=5))
    job.say(0, wire.Warmed())
    job.run(3.0)
    assert job.core.newest_event() == before
    assert job.status.step < 1000


def test_processes_that_stop_without_an_order_are_missed() -> None:
    """RoundStopped of the running round, and a second later no word why."""
    job = training(2)
    job.say(1, wire.RoundStopped())
    job.run(1.5)
    assert [i.cause for i in job.incidents] == ["WorkersMissing"]


def test_processes_that_stop_after_an_exit_are_not_missed() -> None:
    """The exit is the incident; a word later changes nothing."""
    job = training(2)
    job.say(1, wire.RoundStopped())
    job.say(1, wire.WorkerExited(exit_code=-9, step=5))
    job.run(12.0)
    assert [i.cause for i in job.incidents] == ["WorkerCrashed"]


def test_a_first_step_that_is_told_again_explains_no_missing_process() -> None:
    """An agent repeats it after a reconnect, when its hello has shown that nothing runs."""
    job = training(2)
    job.say(1, wire.RoundStopped())
    job.run(0.5)
    job.say(1, wire.RoundStarted(first_step=True, step=1))
    job.run(1.0)
    assert [i.cause for i in job.incidents] == ["WorkersMissing"]


def test_processes_that_began_after_the_hello_are_not_missed() -> None:
    """Nor those of a torchrun, whose hello can never show them."""
    job = training(2)
    job.say(1, wire.RoundStopped())
    job.run(0.5)
    job.say(1, wire.RoundStarted())
    job.run(3.0)
    assert job.incidents == ()


@pytest.mark.parametrize("exits", [1, 2])
def test_each_process_that_stopped_needs_a_reason(exits: int) -> None:
    """One of two ranks ended well, which says nothing of the other."""
    job = started(2, agents={"local": 2})
    for local_rank in range(exits):
        job.say(1, wire.WorkerExited(local_rank=local_rank, exit_code=0))
        job.say(1, wire.RoundStopped())
    job.run(1.5)
    causes = [i.cause for i in job.incidents]
    assert causes == ["WorkersMissing"][exits - 1 :]


def test_ranks_that_stopped_at_a_barrier_nobody_knows_of_are_missed() -> None:
    """A master without the end of its predecessor's journal hears of it, in the usual order."""
    job = training(2)
    job.say(1, wire.BarrierReached(barrier_id=7, step=3))
    job.say(1, wire.WorkerExited(exit_code=0, barrier=True))
    job.run(1.5)
    assert [i.cause for i in job.incidents] == ["WorkersMissing"]


def test_a_reason_that_is_owed_for_one_round_is_not_asked_of_the_next() -> None:
    """Another node's failure ended the round; the next one's processes take long to begin."""
    job = training(2)
    job.agents[1].drag = 3.0
    job.say(1, wire.RoundStopped())
    job.agents[0].crash_worker()
    job.run(0.2)
    assert not job.is_in("TRAINING")
    job.run_until("TRAINING")
    assert job.status.round == 2
    assert [i.cause for i in job.incidents] == ["WorkerCrashed"]


def test_the_end_of_the_running_rounds_store_is_told() -> None:
    """Training goes on; only new groups would fail."""
    job = training(2)
    world = job.context.worlds.newest
    assert world is not None
    job.say(0, wire.StorePrepared(store_id=world.store_ids[0], error="killed"))
    job.say(0, wire.StorePrepared(store_id=world.store_ids[0], host="h", port=9))
    job.say(0, wire.StorePrepared(store_id="nobody asked", host="h", port=9))
    assert job.reasons()[-1] == "StoreMissing"
    assert job.is_in("TRAINING")


def _until_assigned(job: SteeredJob, number: int) -> World:
    """Let time pass until this round is assigned, whose ranks do not step for a while."""

    def found() -> World | None:
        world = job.context.worlds.running()
        return world if world is not None and world.round == number else None

    job.time.run(job.time.now + 60.0, lambda: found() is not None)
    world = found()
    assert world is not None
    assert not world.training
    return world


def test_a_store_that_ends_before_its_round_trains_interrupts_the_round() -> None:
    """Its ranks would try to connect for many minutes."""
    job = SteeredJob(job_spec(replicas=2))
    job.add_agents(2)
    world = _until_assigned(job, 1)
    job.say(1, wire.StorePrepared(store_id="another", error="killed"))
    assert job.members == [0, 1]
    job.say(0, wire.StorePrepared(store_id=world.store_ids[0], error="the zygote ended"))
    assert job.members == []
    [case] = job.incidents
    assert case.cause == "StoreLost"
    assert "the store of round 1 ended: the zygote ended" in case.text
    job.run_until("TRAINING")
    assert job.status.round == 2


def test_a_store_that_ended_with_the_round_before_is_no_second_incident() -> None:
    """A peer's report was faster than that of the node whose zygote ended."""
    job = training(2)
    job.say(1, wire.WorkerExited(rank=1, exit_code=1, error_type="RuntimeError"))
    world = _until_assigned(job, 2)
    host = world.fact.members[0].node_rank
    job.say(host, wire.WorkerExited(rank=0, exit_code=-9, age_seconds=0.1), 1)
    job.say(host, wire.StorePrepared(store_id=world.store_ids[0], error="the zygote ended"), 2)
    job.run_until("TRAINING")
    job.run(15.0)
    assert job.status.round == 3
    assert [i.cause for i in job.incidents] == ["WorkerCrashed"]
    assert len(job.charges()) == 1


def test_cold_starts_are_told_once() -> None:
    """Shown with the node."""
    job = training(2)
    job.say(0, wire.RoundStarted(cold_reason="a thread is running"))
    job.say(0, wire.RoundStarted(cold_reason="a thread is running"))
    assert job.reasons().count("NodeCold") == 1
    assert job.core.nodes(job.moment())[0].cold_reason == "a thread is running"
    job.add_agent(2)
    job.time.run(job.time.now + 1.0, lambda: 2 in job.context.membership.nodes)
    job.say(2, wire.Warmed(cold_reason="no fork"))
    assert job.core.nodes(job.moment())[2].cold_reason == "no fork"


def test_answers_to_commands_are_noted() -> None:
    """Unknown ids are nobody's."""
    job = training(2, min_replicas=2, replaces=False)
    job.agents[1].crash()
    job.run(1.0)
    assert not job.state.commands or all(
        command.kind == "replace" for command in job.state.commands.values()
    )
    job.say(0, wire.CommandDone(command_id=12345, ok=True))


def test_a_released_agent_says_goodbye() -> None:
    """It left as it was told: no incident; one that comes back is told again."""
    job = training(3)
    agent = job.agents[2]
    agent.ignores += (wire.Leave,)
    job.ask(wire.DrainNodeRequest(node_rank=2))
    job.time.run(job.time.now + 5.0, lambda: 2 in job.state.released)
    job.sent.clear()
    agent.stream = None
    agent.dial()
    job.run(0.1)
    assert isinstance([message for rank, message in job.sent if rank == 2][-1], wire.Leave)
    job.say(2, wire.Goodbye(reason="bye"))
    job.run(15.0)
    assert job.charges() == []
    assert job.members == [0, 1]


def test_an_agent_that_was_released_does_not_come_back() -> None:
    """A hello after it was told to leave and left."""
    job = training(3)
    hello = job.agents[2].hello()
    job.ask(wire.DrainNodeRequest(node_rank=2))
    job.run(5.0)
    batch = job.take(Connected(9999, hello))
    told = [i.response.message for i in batch if isinstance(i, Send)]
    assert [type(message) for message in told] == [wire.Leave]
    assert told[0].outcome is wire.LeaveOutcome.RELEASED  # type: ignore[union-attr]
    job.ask(wire.StopJobRequest(now=True))
    job.run(1.0)
    batch = job.take(Connected(10000, hello))
    told = [i.response.message for i in batch if isinstance(i, Send)]
    assert told[0].outcome is wire.LeaveOutcome.RELEASED  # type: ignore[union-attr]


def test_a_script_that_shows_its_steps_late() -> None:
    """Taken for one without the SDK at first; its first step corrects that."""
    job = started(2, agents={"sdk": False})
    assert job.status.degraded_progress
    for rank in (0, 1):
        job.say(rank, wire.RoundStarted(first_step=True, step=41))
    assert job.state.best_step == 41


def test_restart_is_asked_while_an_incident_is_open() -> None:
    """The failure is charged, the restart is free."""
    job = training(2)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 1.0, lambda: job.is_in("STARTING"))
    job.ask(wire.RestartWorkerRequest())
    job.run(15.0)
    assert job.charges() == [wire.BudgetKind.FAILURES]
    causes = [item.cause for item in job.incidents]
    assert causes[-1] == "RestartAsked"


def test_events_are_served_from_any_point() -> None:
    """Oldest first, at most as many as asked for."""
    job = training(2)
    core, newest = job.core, job.core.newest_event()
    every = core.events_after(0, 1000)
    assert [event.sequence for event in every] == list(range(1, newest + 1))
    assert core.events_after(newest - 2, 1) == every[-2:-1]
    assert core.events_after(newest, 10) == ()
    assert core.events_after(0, 3) == every[:3]
    assert core.events_after(0, 1)[0].sequence == 1


def test_only_the_newest_events_and_incidents_are_kept() -> None:
    """Old ones make room."""
    settings = type(SteeredJob(job_spec()).settings)(event_limit=20, incident_limit=2)
    job = started(2, settings=settings)
    for _ in range(4):
        job.agents[0].crash_worker()
        job.run(1.0)
    assert len(job.core.events_after(0, 1000)) == 20
    assert len(job.incidents) == 2
    job.run(15.0)


def test_nodes_before_the_first_world_are_ready_or_warming() -> None:
    """And draining ones say so."""
    job = SteeredJob(job_spec())
    job.add_agent(0)
    job.run(0.03)
    assert [n.state.name for n in job.core.nodes(job.moment())][:1] == ["WARMING"]
    job.run(1.0)
    assert [n.state.name for n in job.core.nodes(job.moment())][:1] == ["READY"]
    job.agents[0].ignores += (wire.Leave,)
    job.ask(wire.DrainNodeRequest(node_rank=0))
    assert [n.state.name for n in job.core.nodes(job.moment())][:1] == ["DRAINING"]
    assert not isinstance(job.answers.popitem()[1], Refuse)


def test_two_drains_of_one_node_are_one() -> None:
    """The first reason stands."""
    job = training(3)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.evict(1)
    job.run(20.0)
    assert job.charges() == []
    assert job.reasons().count("NodeDraining") == 1


def test_a_drained_node_that_dies_first_explains_the_others() -> None:
    """Whoever raises because of it is not blamed: a person wanted it out."""
    job = training(3, replaces=False)
    job.raises = 1.0
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(0.1)
    job.agents[1].crash()
    job.run(15.0)
    assert job.charges() == []
    assert job.members == [0, 2]


def test_a_claim_counts_only_while_the_job_waits() -> None:
    """An agent of an older life comes when the first world is being formed."""
    job = SteeredJob(job_spec(replicas=2))
    job.store_failures = 1.0
    job.add_agents(2)
    job.time.run(5.0, lambda: job.is_in("FORMING"))
    other = job.add_agent(2)
    other.alive = False
    hello = wire.Hello(
        job_uid="uid-1",
        node_rank=3,
        agent_id="z",
        pod_uid="z",
        local_world_size=1,
        round=9,
        workers=other.hello().workers,
    )
    job.take(Connected(8888, hello))
    assert not job.context.claims.hellos
