"""Growing, shrinking, draining: one barrier, no step done again."""

from __future__ import annotations

from holdfast_master.instructions import Refuse, Reply
from holdfast_master.settings import CoreSettings
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training


def test_scaling_up_by_command() -> None:
    """The operator writes the size; the world grows at a barrier when the nodes are warm."""
    job = training(2)
    number = job.ask(wire.ScaleRequest(replicas=4, reason="more"))
    job.run(10.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert answer.response == wire.ScaleResponse(generation=2)
    assert job.members == [0, 1, 2, 3]
    assert job.redone == [0]
    assert job.charges() == []
    status = job.status
    assert (status.rescales, status.nodes_replaced) == (1, 0)


def test_scaling_down_by_command() -> None:
    """The highest indices go, after the world without them trains."""
    job = training(4)
    job.ask(wire.ScaleRequest(replicas=2))
    job.time.run(job.time.now + 10.0, lambda: job.members == [0, 1])
    assert not job.outcomes
    job.run(3.0)
    assert job.is_in("TRAINING")
    assert sorted(job.outcomes) == [
        (2, wire.LeaveOutcome.RELEASED),
        (3, wire.LeaveOutcome.RELEASED),
    ]
    assert job.redone == [0]
    job.run(15.0)
    assert job.charges() == []
    assert job.members == [0, 1]
    job.ask(wire.ScaleRequest(replicas=3))
    job.run(10.0)
    assert job.members == [0, 1, 2]
    assert job.status.nodes_replaced == 0


def test_standbys_go_first() -> None:
    """A smaller spare count touches no member."""
    job = training(2, standbys=2)
    job.add_agent(2)
    job.add_agent(3)
    job.run(2.0)
    job.operator.change(standbys=0)
    job.run(3.0)
    assert sorted(job.outcomes) == [
        (2, wire.LeaveOutcome.RELEASED),
        (3, wire.LeaveOutcome.RELEASED),
    ]
    assert job.status.round == 1


def test_a_promoted_standby_beyond_the_wanted_ranks_gives_its_place_back() -> None:
    """Standby 3 stands in for 1; when 1 is back and no standby is wanted, 3 goes."""
    job = training(3, standbys=1)
    job.add_agent(3)
    job.run(1.0)
    job.agents[1].crash()
    job.run(6.0)
    assert job.members == [0, 3, 2]
    job.operator.change(standbys=0)
    job.run(5.0)
    assert job.members == [0, 1, 2]
    assert (3, wire.LeaveOutcome.RELEASED) in job.outcomes


def test_surplus_nodes_go_after_their_grace_even_if_no_world_trains() -> None:
    """The grace is a promise to whoever wants the nodes."""
    job = training(4, min_replicas=2, scale_down_grace_seconds=5.0)
    for agent in job.agents.values():
        agent.sdk = True
    job.agents[0].crash(told=True)
    job.agents[1].crash(told=True)
    job.replaces = False
    job.run(0.5)
    job.operator.change(replicas=2)
    for rank in (0, 1):
        job.agents[rank].crash()
    job.run(8.0)
    assert {rank for rank, _ in job.outcomes} == {2, 3}


def test_draining_shrinks_the_world_without_a_loss() -> None:
    """The person is told what will happen; the node leaves when the others go on."""
    job = training(3)
    number = job.ask(wire.DrainNodeRequest(node_rank=1, reason="maintenance"))
    job.run(8.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, wire.DrainNodeResponse)
    assert "a world of 2" in answer.response.text
    assert job.members == [0, 2]
    assert job.outcomes == [(1, wire.LeaveOutcome.RELEASED)]
    assert job.redone == [0]
    job.run(12.0)
    assert job.charges() == []


def test_draining_promotes_a_standby() -> None:
    """Same size, the vacant place."""
    job = training(3, standbys=1)
    job.add_agent(3)
    job.run(1.0)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(5.0)
    assert job.members == [0, 3, 2]
    assert job.redone == [0]


def test_draining_below_the_minimum_asks_for_another_node() -> None:
    """Saved at the barrier, waits, goes on with the replacement where it stopped."""
    job = training(2)
    number = job.ask(wire.DrainNodeRequest(node_rank=0))
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert "too few are left" in str(answer.response)
    job.run(12.0)
    assert sorted(job.members) == [0, 1]
    assert "ReplaceRequested" in job.reasons()
    assert job.training.redone == 0


def test_draining_a_standby_lets_it_go_at_once() -> None:
    """No barrier for a node that is in no world."""
    job = training(2, standbys=1)
    job.add_agent(2)
    job.run(1.0)
    job.ask(wire.DrainNodeRequest(node_rank=2))
    job.run(0.5)
    assert job.outcomes == [(2, wire.LeaveOutcome.RELEASED)]
    assert job.status.round == 1


def test_draining_while_the_world_starts_costs_no_barrier() -> None:
    """Nothing was done yet that could be lost."""
    job = training(3)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 1.0, lambda: job.is_in("STARTING"))
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(2.0)
    assert job.members == [0, 2]
    assert "BarrierSet" not in job.reasons()


def test_draining_while_the_store_is_awaited() -> None:
    """The world that was decided a moment ago is decided anew."""
    job = training(3)
    job.store_failures = 1.0
    job.agents[0].crash_worker()
    job.run(0.1)
    job.agents[0].crash_worker()
    job.time.run(job.time.now + 5.0, lambda: job.is_in("FORMING"))
    job.ask(wire.DrainNodeRequest(node_rank=0))
    job.store_failures = 0.0
    job.run(5.0)
    assert job.members == [1, 2]


def test_growth_that_nobody_asked_for_is_a_rescale() -> None:
    """A node that comes late for the first time."""
    job = SteeredJob(job_spec(replicas=3, join_window_seconds=1.0))
    job.add_agents(2)
    job.run_until("TRAINING")
    job.run(3.0)
    job.add_agent(2)
    job.run(15.0)
    assert job.members == [0, 1, 2]
    assert job.charges() == [wire.BudgetKind.RESCALES]


def test_a_unit_that_comes_back_after_a_loss_is_no_rescale() -> None:
    """The node that waited for the successor of the lost one comes with it: the loss has paid."""
    job = started(4, min_replicas=2, node_unit=2)
    job.replaces = False
    job.agents[3].crash()
    job.run(20.0)
    assert job.members == [0, 1]
    job.operator.replace(3)
    job.run(30.0)
    assert job.members == [0, 1, 2, 3]
    assert job.charges() == [wire.BudgetKind.FAILURES]


def test_newcomers_join_together() -> None:
    """The first one waits a little for the others that are on their way."""
    job = training(2)
    job.operator.change(replicas=4)
    job.run(10.0)
    assert job.members == [0, 1, 2, 3]
    assert job.status.rescales == 1


def test_growth_that_does_not_pay_is_left() -> None:
    """The change would cost more than it gains over the horizon."""
    settings = CoreSettings(rescale_cost_seconds=1000.0)
    job = SteeredJob(job_spec(replicas=3, join_window_seconds=0.5), settings=settings)
    job.add_agents(2)
    job.run_until("TRAINING")
    job.add_agent(2)
    job.run(10.0)
    assert job.members == [0, 1]


def test_the_cost_of_a_rescale_is_measured() -> None:
    """Cheap barriers make later growth cheaper to decide."""
    job = training(2)
    before = job.context.worlds.rescale_cost
    job.ask(wire.ScaleRequest(replicas=3))
    job.run(10.0)
    assert job.context.worlds.rescale_cost < before


def test_scale_needs_an_operator_and_a_number_of_nodes() -> None:
    """Each refusal names the value and the remedy; the present size is answered at once."""
    job = training(2)
    none = job.ask(wire.ScaleRequest(replicas=0))
    same = job.ask(wire.ScaleRequest(replicas=2))
    assert "replicas 0 is not a number of nodes" in str(job.answers[none])
    assert isinstance(job.answers[same], Reply)
    job.operator.leave()
    alone = job.answers[job.ask(wire.ScaleRequest(replicas=3))]
    assert isinstance(alone, Refuse)
    assert (alone.code.value, alone.reason) == ("FAILED_PRECONDITION", "NO_OPERATOR")


def test_scaling_down_past_a_drained_node_keeps_the_job_training() -> None:
    """Node 1 stands in for node 0, which was drained, until that is back; then it goes."""
    job = training(2, min_replicas=1)
    job.ask(wire.DrainNodeRequest(node_rank=0))
    job.run(5.0)
    assert job.members == [1]
    step = job.step(job.state.round)
    job.operator.change(replicas=1)
    job.run(0.5)
    assert job.members == [1]
    job.run(10.0)
    assert job.members == [0]
    assert job.is_in("TRAINING")
    assert job.step(job.state.round) > step
    assert (1, wire.LeaveOutcome.RELEASED) in job.outcomes


def test_a_drained_node_comes_back_when_a_person_wants_it() -> None:
    """Restart of an absent rank asks for its pod."""
    job = training(2, min_replicas=1)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(5.0)
    assert job.members == [0]
    number = job.ask(wire.RestartWorkerRequest(node_rank=1))
    job.run(10.0)
    assert isinstance(job.answers[number], Reply)
    assert job.members == [0, 1]


def test_nobody_waits_for_a_node_that_was_drained() -> None:
    """The join window is for nodes that may come."""
    job = training(2, min_replicas=1, join_window_seconds=30.0)
    job.ask(wire.DrainNodeRequest(node_rank=0))
    job.run(5.0)
    job.ask(wire.DrainNodeRequest(node_rank=1))
    job.run(10.0)
    assert job.members == [1]
    assert job.is_in("TRAINING")


def drained() -> SteeredJob:
    """A job of three nodes, the last of which was drained and has left."""
    job = training(3, min_replicas=1)
    number = job.ask(wire.DrainNodeRequest(node_rank=2))
    job.run(8.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, wire.DrainNodeResponse)
    assert "brings it back" in answer.response.text
    assert job.members == [0, 1]
    return job


def states(job: SteeredJob) -> list[wire.NodeState]:
    """Of all nodes, in node rank order."""
    return [node.state for node in job.core.nodes(job.moment())]


def test_a_drained_node_is_shown_as_drained() -> None:
    """Nothing of it was lost, and nobody waits for it; a new master knows that as well."""
    job = drained()
    assert states(job) == [wire.NodeState.ACTIVE, wire.NodeState.ACTIVE, wire.NodeState.DRAINED]
    job.restart_master()
    job.run(5.0)
    assert states(job) == [wire.NodeState.ACTIVE, wire.NodeState.ACTIVE, wire.NodeState.DRAINED]
    job.agents[1].crash()
    job.replaces = False
    job.run(0.3)
    assert states(job)[1] is wire.NodeState.LOST


def test_a_scale_to_the_size_that_is_wanted_brings_drained_nodes_back() -> None:
    """Once; when all are there the answer says that nothing changes."""
    job = drained()
    number = job.ask(wire.ScaleRequest(replicas=3))
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert answer.response == wire.ScaleResponse(
        generation=1, text="3 replicas are wanted already; node 2 comes back"
    )
    assert states(job)[2] is wire.NodeState.MISSING
    job.run(20.0)
    assert job.members == [0, 1, 2]
    again = job.answers[job.ask(wire.ScaleRequest(replicas=3))]
    assert isinstance(again, Reply)
    assert isinstance(again.response, wire.ScaleResponse)
    assert again.response.text.endswith("nothing changes")
    assert job.charges() == []


def test_a_restart_brings_a_drained_node_back() -> None:
    """A person names it."""
    job = drained()
    assert isinstance(job.answers[job.ask(wire.RestartWorkerRequest(node_rank=2))], Reply)
    job.run(20.0)
    assert job.members == [0, 1, 2]
    assert states(job) == [wire.NodeState.ACTIVE] * 3


def test_a_finished_node_that_has_left_is_shown_as_finished() -> None:
    """Its work is done: it is not lost."""
    job = training(2)
    job.agents[1].finishes = False
    job.training.retarget(job.step(1) + 10)
    job.time.run(job.time.now + 10.0, lambda: len(job.state.finished) == 1)
    job.agents[0].crash()
    job.run(1.0)
    assert states(job)[0] is wire.NodeState.FINISHED


def without_sdk(nodes: int) -> SteeredJob:
    """A job whose scripts report no steps, with fewer nodes than are wanted."""
    return started(nodes, agents={"sdk": False}, replicas=nodes + 1, join_window_seconds=0.5)


def test_growth_does_not_kill_a_world_that_may_still_be_starting() -> None:
    """No rank says when its start is over: a newcomer waits for it, two minutes at most."""
    job = without_sdk(2)
    job.add_agent(2, sdk=False)
    job.run(110.0)
    assert job.members == [0, 1]
    assert job.status.round == 1
    job.run(20.0)
    assert job.members == [0, 1, 2]


def test_growth_waits_for_the_first_step_of_a_script_that_imports_the_sdk_late() -> None:
    """The world counted as training before the SDK was there: its ranks save before it grows."""
    job = without_sdk(2)
    job.add_agent(2)
    job.run(8.0)
    assert job.members == [0, 1]
    for agent in job.agents.values():
        agent.sdk = True
    job.run(10.0)
    assert job.members == [0, 1, 2]
    assert job.redone == [0]


def test_a_new_master_takes_the_start_of_a_world_that_it_finds_for_over() -> None:
    """It does not know since when the world runs, and a newcomer need not wait once more."""
    job = without_sdk(2)
    job.run(100.0)
    job.restart_master()
    job.add_agent(2, sdk=False)
    job.run(15.0)
    assert job.members == [0, 1, 2]
