"""Faults that random schedules found in the master, each as a small scene of its own."""

from __future__ import annotations

import dataclasses

from holdfast_master.settings import CoreSettings
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training


def test_a_journal_torn_between_a_fact_and_its_phase_is_mended() -> None:
    """The world trains, the record of the phase is lost: the new master takes that step itself."""
    job = training(2)
    job.kill_master()
    records = job.records
    place = max(n for n, r in enumerate(records) if isinstance(r.fact, wire.WorldTraining))
    job.disk.read = lambda job_uid: tuple(records[: place + 1])  # type: ignore[method-assign]
    job.start_master()
    assert job.phase is wire.JobPhase.TRAINING
    job.run(3.0)
    assert job.is_in("TRAINING")


def test_the_ack_of_a_wanted_restart_is_nobodys_fault() -> None:
    """Ranks that raise because their peers were killed by order are not blamed."""
    job = started(3, agents={"sdk": False})
    agent, number = job.agents[1], job.agents[1].round
    job.ask(wire.RestartWorkerRequest())
    exited = wire.WorkerExited(rank=1, exit_code=1, error_type="RuntimeError", step=5)
    job.time.after(0.0001, lambda: agent.report(exited, number))
    job.run(20.0)
    assert "WorkerFailed" in job.reasons()
    assert job.charges() == []
    assert "IncidentBlamed" not in job.reasons()


def test_an_adopted_world_without_the_sdk_trains() -> None:
    """Nobody reports a first step: it counts as training after a while, as any such world."""
    job = started(2, agents={"sdk": False})
    job.restart_master(journal=False)
    job.run_until("TRAINING", limit=8.0)
    assert "WorldAdopted" in job.reasons()


def test_an_idle_node_does_not_hide_a_running_world() -> None:
    """A standby is the first to greet a master without memory; the others' world goes on."""
    job = SteeredJob(job_spec(replicas=2, min_replicas=1, standbys=1, join_window_seconds=0.0))
    job.add_agents(3)
    job.run_until("TRAINING")
    job.run(8.0)
    members = job.members
    assert len(members) == 2
    job.kill_master()
    for rank in members:
        job.agents[rank].cut_off()
    job.start_master(journal=False)
    job.run(1.0)
    assert job.is_in("WAITING")
    for rank in members:
        job.agents[rank].reachable()
    job.run(3.0)
    assert job.is_in("TRAINING")
    assert "WorldAdopted" in job.reasons()
    assert job.members == members


def test_idle_nodes_of_a_lost_journal_do_not_wait_for_ever() -> None:
    """Others that may run a world have five seconds."""
    job = SteeredJob(job_spec(replicas=3, min_replicas=1, join_window_seconds=0.0))
    job.replaces = False
    job.restart_master(journal=False)
    job.add_agent(0)
    job.run(4.0)
    assert job.is_in("WAITING")
    job.run(3.0)
    assert job.is_in("TRAINING")


def test_a_world_that_lacks_a_rank_is_not_adopted() -> None:
    """A master without memory starts one fresh round for a world that lacks a rank."""
    job = SteeredJob(job_spec(replicas=2))
    job.raises = 0.0
    job.add_agents(2, local=2)
    job.run_until("TRAINING")
    job.run(2.0)
    job.kill_master()
    whole = job.agents[0].hello

    def hello() -> wire.Hello:
        found = whole()
        return dataclasses.replace(found, workers=found.workers[:1])

    job.agents[0].hello = hello  # type: ignore[method-assign]
    job.start_master(journal=False)
    job.run(10.0)
    assert "WorldAdopted" not in job.reasons()
    assert job.is_in("TRAINING")
    assert job.status.round == 2


def test_a_restored_master_learns_that_a_barrier_is_in_vain() -> None:
    """It could not know that no rank has the SDK; it does not arm three times to find out."""
    rare = CoreSettings(heartbeat_seconds=5.0, silence_seconds=14.0)
    spec = job_spec(replicas=3, min_replicas=2, join_window_seconds=0.0)
    job = SteeredJob(spec, settings=rare)
    job.add_agents(2, sdk=False)
    job.run_until("TRAINING")
    job.run(6.0)
    job.restart_master()
    job.run(0.6)
    job.add_agent(2, sdk=False)
    job.run(30.0)
    assert job.reasons().count("BarrierSet") == 1
    assert job.members == [0, 1, 2]


def test_a_dead_node_is_blamed_although_the_next_world_does_without_it() -> None:
    """The survivors' exceptions came first, and a scale-down before the news of its death."""
    job = training(4)
    job.raises, job.store_failures = 0.0, 1.0
    for agent in job.agents.values():
        agent.waiting = None
    for node in job.context.membership.nodes.values():
        node.store = None
    dead = job.agents[3]
    exited = wire.WorkerExited(rank=0, exit_code=1, error_type="RuntimeError", step=5)
    number = job.agents[0].round
    job.agents[0].report(exited, number)
    job.run(0.02)
    assert job.is_in("FORMING")
    spec: wire.MasterSpec = job.spec
    job.operator.change(replicas=spec.replicas - 1)
    newest = job.context.worlds.newest
    assert newest is not None
    assert 3 not in newest.places
    job.operator.ended(dead, wire.PodPhase.FAILED, 137)
    job.run(0.05)
    case = job.context.incidents.current
    assert case is not None
    assert case.best.node_rank == 3
    job.store_failures = 0.0
    job.run(30.0)
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_a_pod_that_never_joined_is_charged_once_over_two_masters() -> None:
    """The second master hears of it anew when the operator lists all pods."""
    job = SteeredJob(job_spec(replicas=2))
    job.replaces = False
    job.add_agent(0)
    job.pods[1] = wire.PodObservation(
        node_rank=1, pod_uid="dead", name="job-worker-1", phase=wire.PodPhase.FAILED, exit_code=127
    )
    job.operator.observe(1)
    job.run(2.0)
    assert job.charges() == [wire.BudgetKind.NO_PROGRESS]
    job.restart_master()
    job.run(2.0)
    assert job.charges() == [wire.BudgetKind.NO_PROGRESS]


def test_a_master_without_memory_charges_no_pod_that_had_joined_before() -> None:
    """A master without the journal cannot know of a dead pod's join and charges nothing."""
    job = SteeredJob(job_spec(replicas=2, min_replicas=2))
    job.replaces = False
    job.add_agents(2)
    job.run_until("TRAINING")
    job.kill_master()
    job.agents[1].crash()
    job.run(1.0)
    job.start_master(journal=False)
    job.run(2.0)
    assert "PodFailed" in job.reasons()
    assert job.charges() == []
