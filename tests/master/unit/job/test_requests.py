"""Requests of users: each is answered once."""

from __future__ import annotations

from holdfast_master.inputs import OperatorMessage, PeerRefused
from holdfast_master.instructions import RefusalCode, Refuse, Reply
from holdfast_wire import messages as wire
from simulation.steered.job import SteeredJob, job_spec, started, training


def test_restart_of_all_ranks_saves_first_and_is_free() -> None:
    """All ranks save and stop after the same step; a new round begins there, on no budget."""
    job = training(2)
    number = job.ask(wire.RestartWorkerRequest(reason="new code"))
    assert job.answers[number] == Reply(number, wire.RestartWorkerResponse(round=1))
    assert job.is_in("SAVING")
    job.run(3.0)
    assert job.status.round == 2
    job.run(12.0)
    assert job.charges() == []
    incidents = job.incidents
    assert [(item.cause, item.steps_redone) for item in incidents] == [("RestartAsked", 0)]
    assert job.training.redone == 0


def test_a_restart_during_a_barrier_ends_in_one_new_round() -> None:
    """The ranks are on their way to save: nobody kills them before."""
    job = training(3)
    job.ask(wire.DrainNodeRequest(node_rank=2))
    job.run(0.05)
    assert job.is_in("SAVING")
    number = job.ask(wire.RestartWorkerRequest())
    assert isinstance(job.answers[number], Reply)
    job.run(5.0)
    assert job.status.round == 2
    assert job.members == [0, 1]
    assert job.training.redone == 0


def test_a_restart_without_the_sdk_is_at_once_and_says_so() -> None:
    """Nobody could ask those ranks to save: they go on from the script's own checkpoint."""
    job = started(2, agents={"sdk": False})
    job.ask(wire.RestartWorkerRequest())
    job.run(1.0)
    assert job.status.round == 2
    assert "no rank reports steps" in job.texts("RestartRequested")[-1]


def test_a_restart_of_a_job_that_hangs_is_at_once() -> None:
    """Ranks that complete no step never come to the step at which they would save."""
    job = training(2)
    hung = wire.RankProgress(
        round=1, step=5, step_seconds=0.1, has_sdk=True, since_step_seconds=60.0
    )
    job.say(0, wire.Heartbeat(ranks=(hung,)))
    job.ask(wire.RestartWorkerRequest())
    job.run(1.0)
    assert job.status.round == 2
    assert "completes no step" in job.texts("RestartRequested")[-1]


def test_a_new_master_finishes_the_restart_that_was_granted() -> None:
    """The barrier was torn off with its master: its successor saves and begins the new round."""
    job = training(2)
    job.ask(wire.RestartWorkerRequest())
    job.restart_master()
    job.run(10.0)
    assert job.is_in("TRAINING")
    assert job.status.round == 2
    assert job.training.redone == 0


def test_restart_of_one_node_replaces_its_agent() -> None:
    """Drained at a barrier; the operator makes a new one."""
    job = training(3)
    before = job.agents[1].agent_id
    number = job.ask(wire.RestartWorkerRequest(node_rank=1))
    assert isinstance(job.answers[number], Reply)
    job.run(20.0)
    assert job.agents[1].agent_id != before
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == []


def test_a_node_whose_restart_was_granted_is_replaced_although_it_falls_silent() -> None:
    """It is lost before the barrier: the operator makes a new one all the same."""
    job = training(3)
    before = job.agents[1].agent_id
    job.ask(wire.RestartWorkerRequest(node_rank=1))
    job.agents[1].cut_off()
    job.run(30.0)
    assert job.agents[1].agent_id != before
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == []


def test_the_next_master_replaces_a_node_whose_restart_was_granted() -> None:
    """The next master carries out the whole of a restart that its predecessor granted."""
    job = training(3)
    before = job.agents[1].agent_id
    job.ask(wire.RestartWorkerRequest(node_rank=1))
    job.restart_master()
    job.run(40.0)
    assert job.agents[1].agent_id != before
    assert sorted(job.members) == [0, 1, 2]


def test_restart_needs_a_round_an_operator_a_node() -> None:
    """Each refusal says what is missing."""
    waiting = SteeredJob(job_spec())
    nothing = waiting.answers[waiting.ask(wire.RestartWorkerRequest())]
    assert isinstance(nothing, Refuse)
    assert nothing.reason == "NO_ROUND"
    job = training(2)
    nobody = job.answers[job.ask(wire.RestartWorkerRequest(node_rank=7))]
    assert isinstance(nobody, Refuse)
    assert (nobody.code, nobody.reason) == (RefusalCode.NOT_FOUND, "NO_SUCH_NODE")
    assert "present are: 0, 1" in nobody.text
    job.operator.leave()
    alone = job.answers[job.ask(wire.RestartWorkerRequest(node_rank=1))]
    assert isinstance(alone, Refuse)
    assert alone.reason == "NO_OPERATOR"


def test_draining_an_unknown_node_is_refused() -> None:
    """With the nodes that there are."""
    job = training(2)
    refused = job.answers[job.ask(wire.DrainNodeRequest(node_rank=5))]
    assert isinstance(refused, Refuse)
    assert refused.reason == "NO_SUCH_NODE"


def test_stacks_of_all_nodes() -> None:
    """One answer when all have answered; who is away is named."""
    job = training(3)
    job.agents[2].cut_off()
    job.run(0.4)
    number = job.ask(wire.DumpStacksRequest())
    assert number not in job.answers
    job.run(0.1)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, wire.DumpStacksResponse)
    assert [bool(node.error) for node in answer.response.nodes] == [False, False, True]
    assert answer.response.nodes[0] == wire.NodeStacks(
        node_rank=0, stacks=(wire.StackText(rank=0, text="stack"),)
    )


def test_stacks_of_a_node_that_does_not_answer() -> None:
    """Ten seconds, then what there is."""
    job = training(2)
    job.agents[1].freeze()
    number = job.ask(wire.DumpStacksRequest(node_rank=1))
    job.run(4.0)
    assert number not in job.answers
    job.run(8.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, wire.DumpStacksResponse)
    assert answer.response.nodes[0].error == "no answer in time"
    unknown = job.answers[job.ask(wire.DumpStacksRequest(node_rank=9))]
    assert isinstance(unknown, Refuse)


def test_scale_that_the_operator_refuses_or_forgets() -> None:
    """Its error is the user's; after thirty seconds nobody waits."""
    job = training(2)

    def refuse(message: wire.ScaleDecision) -> None:
        job.take(OperatorMessage(wire.ScaleResult(decision_id=message.decision_id, error="quota")))

    job.operator._scale = refuse  # type: ignore[method-assign, assignment]
    first = job.ask(wire.ScaleRequest(replicas=3))
    job.run(1.0)
    refused = job.answers[first]
    assert isinstance(refused, Refuse)
    assert refused.text == "quota"
    job.operator._scale = lambda message: None  # type: ignore[method-assign, assignment]
    second = job.ask(wire.ScaleRequest(replicas=3))
    job.run(31.0)
    late = job.answers[second]
    assert isinstance(late, Refuse)
    assert late.code is RefusalCode.DEADLINE_EXCEEDED


def test_scale_whose_spec_comes_before_the_answer() -> None:
    """Both are needed, in either order."""
    job = training(2)
    answers: list[int] = []
    job.operator._scale = lambda message: answers.append(message.decision_id)  # type: ignore[method-assign, assignment]
    number = job.ask(wire.ScaleRequest(replicas=3))
    job.run(0.2)
    job.operator.change(replicas=3)
    assert number not in job.answers
    job.take(OperatorMessage(wire.ScaleResult(decision_id=99, ok=True)))
    assert number not in job.answers
    job.take(OperatorMessage(wire.ScaleResult(decision_id=answers[0], ok=True)))
    assert isinstance(job.answers[number], Reply)


def test_a_scale_is_compared_with_what_the_owner_asks_for_not_with_what_a_queue_admits() -> None:
    """Half of four is admitted: two is a change, and eight is carried out though two train."""
    job = training(2)
    job.operator.change(replicas=2, asked_replicas=4)
    decided: list[wire.ScaleDecision] = []
    job.operator._scale = decided.append  # type: ignore[method-assign, assignment]
    same = job.answers[job.ask(wire.ScaleRequest(replicas=4))]
    assert isinstance(same, Reply)
    for size, text in ((2, ""), (8, "8 replicas are wanted; its queue admits 2 for now")):
        asked = job.ask(wire.ScaleRequest(replicas=size))
        job.run(0.2)
        number = decided.pop().decision_id
        job.take(OperatorMessage(wire.ScaleResult(decision_id=number, ok=True)))
        assert asked not in job.answers
        job.operator.change(replicas=2, asked_replicas=size)
        answer = job.answers[asked]
        assert isinstance(answer, Reply)
        generation = job.context.spec.generation
        assert answer.response == wire.ScaleResponse(generation=generation, text=text)


def test_scale_of_an_operator_that_goes() -> None:
    """Unavailable, at once."""
    job = training(2)
    job.operator._scale = lambda message: None  # type: ignore[method-assign, assignment]
    number = job.ask(wire.ScaleRequest(replicas=3))
    job.operator.leave()
    refused = job.answers[number]
    assert isinstance(refused, Refuse)
    assert refused.code is RefusalCode.UNAVAILABLE
    job.operator.leave()


def test_a_known_peer_in_the_wrong_role_is_an_event() -> None:
    """Named for people."""
    job = training(2)
    job.take(PeerRefused("user called AgentService/Session"))
    assert job.reasons()[-1] == "PeerRefused"
