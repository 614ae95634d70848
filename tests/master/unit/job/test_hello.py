"""Agents that say hello: again, twice, too late, with a past of their own."""

from __future__ import annotations

from holdfast_master.inputs import Input, OperatorMessage
from holdfast_master.instructions import Instruction
from holdfast_master.settings import CoreSettings
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, training


def test_a_second_agent_of_a_rank_takes_it_over() -> None:
    """The newer pod wins; the older agent is told that it was replaced."""
    job = training(3)
    old = job.agents[1]
    job.add_agent(1)
    job.run(12.0)
    assert (1, wire.LeaveOutcome.REPLACED) in job.outcomes
    assert old.left
    assert sorted(job.members) == [0, 1, 2]
    assert job.incidents[0].cause == "AgentReplaced"


def test_an_agent_of_an_older_pod_is_sent_away() -> None:
    """It cannot take its rank back."""
    job = training(3)
    old = job.agents[1]
    old.cut_off()
    job.run(0.2)
    job.add_agent(1)
    job.run(8.0)
    old.reachable()
    job.run(5.0)
    assert old.left
    assert job.agents[1].alive
    assert sorted(job.members) == [0, 1, 2]


def test_a_hello_twice_on_two_streams_is_one_agent() -> None:
    """The older stream is closed, the training goes on."""
    job = training(2)
    agent = job.agents[1]
    first = agent.session
    assert first is not None
    agent.stream = None
    agent.dial()
    job.run(2.0)
    assert first not in job.master.streams
    assert job.is_in("TRAINING")
    assert job.status.round == 1


def test_an_agent_that_lost_its_round_leads_to_one_fresh_round() -> None:
    """It says hello in an older round although it had started the newest."""
    job = training(2)
    job.raises = 0.0
    agent = job.agents[1]
    agent.newest_round = 0
    agent.workers.lose()
    agent.blip()
    job.run(3.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 2
    job.run(15.0)
    assert job.charges() == []


def test_an_assignment_that_was_lost_with_its_stream_is_sent_again() -> None:
    """A blip at the worst moment: the others wait in their start, no new round is needed."""
    job = training(2)
    job.agents[0].crash_worker()
    agent = job.agents[1]
    job.time.run(job.time.now + 1.0, lambda: job.is_in("STARTING"))
    assert agent.stream is not None
    agent.stream.end_at_agent(0.0)
    job.run(1.5)
    assert job.is_in("TRAINING")
    assert job.status.round == 2


def test_rounds_are_newer_than_any_that_an_agent_names() -> None:
    """An agent of a life before the journal: its round number is never used again."""
    job = SteeredJob(job_spec(replicas=2))
    job.add_agent(0)
    job.add_agent(1, newest_round=41)
    job.run_until("TRAINING")
    assert job.status.round == 42


def test_a_crowd_is_given_a_longer_interval() -> None:
    """Everybody is told when there are too many."""
    settings = CoreSettings(crowd_nodes=3, crowd_messages_per_second=4.0)
    spec = job_spec(replicas=600, min_replicas=600, max_replicas=600)
    job = SteeredJob(spec, settings=settings)
    job.add_agents(6)
    job.run(2.0)
    assert {agent.beat_seconds for agent in job.agents.values()} == {1.5}


def test_node_states_for_people() -> None:
    """Active, draining, disconnected, missing, lost."""
    job = training(3, standbys=2, replaces=False)
    job.agents[1].cut_off()
    job.add_agent(3)
    job.run(0.4)
    states = {node.node_rank: node.state for node in job.core.nodes(job.moment())}
    assert states[0] is wire.NodeState.ACTIVE
    assert states[1] is wire.NodeState.DISCONNECTED
    assert states[3] in {wire.NodeState.WARMING, wire.NodeState.STANDBY}
    assert states[4] is wire.NodeState.MISSING
    job.agents[3].crash()
    job.run(1.0)
    states = {node.node_rank: node.state for node in job.core.nodes(job.moment())}
    assert states[3] is wire.NodeState.LOST


def test_a_hello_can_say_that_processes_run_in_a_newer_round() -> None:
    """The agent knows more than this master: one fresh round, newer than both."""
    job = training(2)
    agent = job.agents[1]
    agent.newest_round = 9
    agent.blip()
    job.run(3.0)
    assert job.status.round == 10
    assert isinstance(agent.hello(), wire.Hello)


class _SpecComesLater(SteeredJob):
    """A job whose agents find the master before its operator does."""

    waits = True

    def take(self, event: Input) -> list[Instruction]:
        """Keep the spec back at first."""
        waits = self.waits and isinstance(event, OperatorMessage)
        return [] if waits else super().take(event)


def test_an_agent_that_came_before_the_first_spec_is_told_what_it_says() -> None:
    """How ranks are judged, and which exits have rules: it would never learn it on its stream."""
    rule = wire.FailureRule(action=wire.FailureAction.FAIL_JOB, log_pattern="lost")
    health = wire.HealthPolicy(hang=wire.HangPolicy(mode=wire.HealthMode.REPORT))
    spec = job_spec(replicas=1, min_replicas=1, failure_rules=(rule,), health=health)
    job = _SpecComesLater(spec, operator_up=False)
    job.add_agents(1)
    job.run(2.0)
    job.waits = False
    job.take(OperatorMessage(spec))
    job.run_until("TRAINING")
    welcomes = [one for _, one in job.sent if isinstance(one, wire.Welcome)]
    assert [one.health for one in welcomes] == [None, health]
    assert [one.failure_rules for one in welcomes] == [(), (rule,)]
    assert job.agents[0].welcome.health == health
