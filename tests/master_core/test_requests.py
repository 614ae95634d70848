"""What users ask for: each request is answered once."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_master.inputs import PeerRefused, ScaleAnswered
from holdfast_master.instructions import RefusalCode, Refuse, Reply
from holdfast_wire.messages import (
    DrainNodeRequest,
    DumpStacksRequest,
    DumpStacksResponse,
    NodeStacks,
    RestartWorkerRequest,
    RestartWorkerResponse,
    ScaleDecision,
    ScaleRequest,
    ScaleResult,
    StackText,
)
from simulated_job import SimulatedJob, job_spec

Start = Callable[..., SimulatedJob]


def test_restart_of_all_ranks_is_a_new_round_and_free(training: Start) -> None:
    """In place, at once, by a person: no budget."""
    job = training(2)
    number = job.ask(RestartWorkerRequest(reason="stuck"))
    assert job.answers[number] == Reply(number, RestartWorkerResponse(round=1))
    job.run(1.0)
    assert job.core.status(job.moment()).round == 2
    job.run(12.0)
    assert job.charges() == []
    assert [i.cause for i in job.core.goodput(job.moment()).incidents] == ["RestartAsked"]


def test_restart_of_one_node_replaces_its_agent(training: Start) -> None:
    """Drained at a boundary; the operator makes a new one."""
    job = training(3)
    before = job.agents[1].agent_id
    number = job.ask(RestartWorkerRequest(node_rank=1))
    assert isinstance(job.answers[number], Reply)
    job.run(20.0)
    assert job.agents[1].agent_id != before
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == []


def test_a_node_whose_restart_was_granted_is_replaced_although_it_falls_silent(
    training: Start,
) -> None:
    """It is lost before the boundary: the operator makes a new one all the same."""
    job = training(3)
    before = job.agents[1].agent_id
    job.ask(RestartWorkerRequest(node_rank=1))
    job.agents[1].cut_off()
    job.run(30.0)
    assert job.agents[1].agent_id != before
    assert sorted(job.members) == [0, 1, 2]
    assert job.charges() == []


def test_the_next_master_replaces_a_node_whose_restart_was_granted(training: Start) -> None:
    """What one master has granted its successor does, and not only half of it."""
    job = training(3)
    before = job.agents[1].agent_id
    job.ask(RestartWorkerRequest(node_rank=1))
    job.kill_master()
    job.start_master()
    job.run(40.0)
    assert job.agents[1].agent_id != before
    assert sorted(job.members) == [0, 1, 2]


def test_restart_needs_a_round_an_operator_a_node(training: Start) -> None:
    """Each refusal says what is missing."""
    waiting = SimulatedJob(job_spec())
    nothing = waiting.answers[waiting.ask(RestartWorkerRequest())]
    assert isinstance(nothing, Refuse)
    assert nothing.reason == "NO_ROUND"
    job = training(2)
    nobody = job.answers[job.ask(RestartWorkerRequest(node_rank=7))]
    assert isinstance(nobody, Refuse)
    assert (nobody.code, nobody.reason) == (RefusalCode.NOT_FOUND, "NO_SUCH_NODE")
    assert "present are: 0, 1" in nobody.text
    job.operator_leaves()
    alone = job.answers[job.ask(RestartWorkerRequest(node_rank=1))]
    assert isinstance(alone, Refuse)
    assert alone.reason == "NO_OPERATOR"


def test_draining_an_unknown_node_is_refused(training: Start) -> None:
    """With the nodes that there are."""
    job = training(2)
    refused = job.answers[job.ask(DrainNodeRequest(node_rank=5))]
    assert isinstance(refused, Refuse)
    assert refused.reason == "NO_SUCH_NODE"


def test_stacks_of_all_nodes(training: Start) -> None:
    """One answer when all have answered; who is away is named."""
    job = training(3)
    job.agents[2].cut_off()
    job.run(0.4)
    number = job.ask(DumpStacksRequest())
    assert number not in job.answers
    job.run(0.1)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, DumpStacksResponse)
    assert [bool(node.error) for node in answer.response.nodes] == [False, False, True]
    assert answer.response.nodes[0] == NodeStacks(
        node_rank=0, stacks=(StackText(rank=0, text="stack"),)
    )


def test_stacks_of_a_node_that_does_not_answer(training: Start) -> None:
    """Ten seconds, then what there is."""
    job = training(2)
    job.agents[1].frozen = True
    number = job.ask(DumpStacksRequest(node_rank=1))
    job.run(4.0)
    assert number not in job.answers
    job.run(8.0)
    answer = job.answers[number]
    assert isinstance(answer, Reply)
    assert isinstance(answer.response, DumpStacksResponse)
    assert answer.response.nodes[0].error == "no answer in time"
    unknown = job.answers[job.ask(DumpStacksRequest(node_rank=9))]
    assert isinstance(unknown, Refuse)


def test_scale_that_the_operator_refuses_or_forgets(training: Start) -> None:
    """Its error is the user's; after thirty seconds nobody waits."""
    job = training(2)

    def refuse(message: ScaleDecision) -> None:
        job.take(ScaleAnswered(ScaleResult(decision_id=message.decision_id, error="quota")))

    job._scaled = refuse  # type: ignore[method-assign]
    first = job.ask(ScaleRequest(replicas=3))
    job.run(1.0)
    refused = job.answers[first]
    assert isinstance(refused, Refuse)
    assert refused.text == "quota"
    job._scaled = lambda message: None  # type: ignore[method-assign]
    second = job.ask(ScaleRequest(replicas=3))
    job.run(31.0)
    late = job.answers[second]
    assert isinstance(late, Refuse)
    assert late.code is RefusalCode.DEADLINE_EXCEEDED


def test_scale_whose_spec_comes_before_the_answer(training: Start) -> None:
    """Both are needed, in either order."""
    job = training(2)
    answers: list[int] = []
    job._scaled = lambda message: answers.append(message.decision_id)  # type: ignore[method-assign]
    number = job.ask(ScaleRequest(replicas=3))
    job.run(0.2)
    job.change(replicas=3)
    assert number not in job.answers
    job.take(ScaleAnswered(ScaleResult(decision_id=99, ok=True)))
    assert number not in job.answers
    job.take(ScaleAnswered(ScaleResult(decision_id=answers[0], ok=True)))
    assert isinstance(job.answers[number], Reply)


def test_scale_of_an_operator_that_goes(training: Start) -> None:
    """Unavailable, at once."""
    job = training(2)
    job._scaled = lambda message: None  # type: ignore[method-assign]
    number = job.ask(ScaleRequest(replicas=3))
    job.operator_leaves()
    refused = job.answers[number]
    assert isinstance(refused, Refuse)
    assert refused.code is RefusalCode.UNAVAILABLE
    job.operator_leaves()


def test_a_known_peer_in_the_wrong_role_is_an_event(training: Start) -> None:
    """Named for people."""
    job = training(2)
    job.take(PeerRefused("user called AgentService/Session"))
    assert job.reasons()[-1] == "PeerRefused"
