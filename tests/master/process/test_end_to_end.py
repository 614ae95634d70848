"""A real master process, agents that follow the protocol, real mTLS: worlds form and re-form."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agents.scripted_agent import ScriptedAgent
from holdfast_wire import codec
from holdfast_wire import messages as wire
from holdfast_wire.identity import Identity
from masters.master_process import master_process
from masters.scripted_operator import ScriptedOperator
from masters.worlds import QUICK, agents_of, events, spec_of, world


def test_two_agents_make_a_world_that_everybody_can_see(tmp_path: Path) -> None:
    """Ranks, sizes, hash and store agree; nodes, goodput and events are served."""
    with world(tmp_path) as (master, agents):
        first, second = (agent.assignments[0] for agent in agents)
        assert [first.group_rank, second.group_rank] == [0, 1]
        assert [first.base_rank, second.base_rank] == [0, 1]
        assert first.world_size == second.world_size == 2
        assert first.world_hash == second.world_hash
        assert (first.store_host, first.store_port) == (second.store_host, second.store_port)
        assert (bool(first.store_id), bool(second.store_id)) == (True, False)
        nodes = master.ask("ListNodes", wire.ListNodesRequest()).nodes
        assert [node.state for node in nodes] == [wire.NodeState.ACTIVE, wire.NodeState.ACTIVE]
        goodput = master.ask("GetGoodput", wire.GetGoodputRequest())
        assert goodput.node_seconds == pytest.approx(
            sum(entry.node_seconds for entry in goodput.totals)
        )
        assert "WorldTraining" in [event.reason for event in events(master)]


def test_a_worker_that_dies_restarts_the_same_members_at_once(tmp_path: Path) -> None:
    """Both get the next round within a fraction of a second, with the same restart count."""
    with world(tmp_path) as (master, agents):
        begin = time.monotonic()
        agents[1].send(wire.WorkerExited(rank=1, exit_code=-9, pid=1))
        for agent in agents:
            agent.wait_for(lambda agent=agent: len(agent.assignments) == 2)
        assert time.monotonic() - begin < 9.0, "it waited for more evidence"
        assert [agent.assignments[1].restart_count for agent in agents] == [1, 1]
        assert [agent.round for agent in agents] == [2, 2]
        incidents = master.ask("GetGoodput", wire.GetGoodputRequest()).incidents
        assert [incident.culprit_rank for incident in incidents] == ["1"]


def test_a_blip_of_a_stream_changes_nothing(tmp_path: Path) -> None:
    """The agent is back at once: no event, no new round."""
    with world(tmp_path) as (master, agents):
        before = len(events(master))
        agents[1].blip()
        agents[1].wait_for(lambda: agents[1].connections == 2)
        # A second connection has been welcomed; what would follow a loss comes later than 0.3 s.
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert [agent.round for agent in agents] == [1, 1]
            time.sleep(0.05)
        assert len(events(master)) == before
        assert agents[1].welcomes[-1].round == 1


def test_a_silent_agent_is_lost_and_the_world_shrinks(tmp_path: Path) -> None:
    """Without evidence the silence limit decides; its return makes the world grow again."""
    with world(tmp_path, **QUICK) as (master, agents):
        agents[1].close()
        agents[0].wait_for(lambda: len(agents[0].assignments) == 2)
        assert agents[0].assignments[1].world_size == 1
        assert "NodeLost" in [event.reason for event in events(master)]
        with agents_of(tmp_path, master.port, [1]) as (back,):
            agents[0].wait_for(lambda: agents[0].assignments[-1].world_size == 2)
            assert back.assignments[0].group_rank == 1


def test_an_agent_that_is_replaced_is_told_to_leave(tmp_path: Path) -> None:
    """Of two agents with one rank the newer stays."""
    with world(tmp_path) as (master, agents), agents_of(tmp_path, master.port, [1]):
        leave = agents[1].wait_for(lambda: agents[1].left)
        assert leave.outcome is wire.LeaveOutcome.REPLACED


def test_people_are_answered_by_agents_and_core(tmp_path: Path) -> None:
    """Stacks of every rank; a restart in place; a scale without an operator is refused."""
    with world(tmp_path) as (master, agents):
        stacks = master.ask("DumpStacks", wire.DumpStacksRequest())
        assert [node.stacks[0].text for node in stacks.nodes] == ["in train", "in train"]
        master.ask("RestartWorker", wire.RestartWorkerRequest(reason="by hand"))
        for agent in agents:
            agent.wait_for(lambda agent=agent: agent.round == 2)
        with pytest.raises(grpc.RpcError) as caught:
            master.ask("Scale", wire.ScaleRequest(replicas=1))
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_stop_by_a_person_ends_agents_watchers_and_master(tmp_path: Path) -> None:
    """Agents are released, a watcher sees the end and a clean end of its stream, exit code 0."""
    with world(tmp_path, exit_when_finished=0.5) as (master, agents):
        with master.channel(Identity("j1", "user")) as made:
            stub: Any = made.unary_stream("/holdfast.v1.JobService/WatchJob")
            watching = stub(codec.encode(wire.WatchJobRequest(min_interval_seconds=0.05)))
            master.ask("StopJob", wire.StopJobRequest(reason="enough"))
            seen = [codec.decode(wire.WatchJobResponse, data).message for data in watching]
        last = [message for message in seen if isinstance(message, wire.JobStatus)][-1]
        assert (last.phase, last.reason) == (wire.JobPhase.FAILED, "StoppedByUser")
        for agent in agents:
            assert agent.wait_for(lambda agent=agent: agent.left)
        assert master.process.wait(timeout=20) == 0


@contextlib.contextmanager
def with_operator(directory: Path, **settings: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Run a master with an operator and two agents whose pods it reports."""
    with (
        master_process(directory, **settings) as master,
        master.channel(Identity("j1", "operator")) as made,
    ):
        operator = ScriptedOperator(made)
        operator.send(spec_of())
        agents = [ScriptedAgent(directory, master.port, rank, unmanaged=False) for rank in (0, 1)]
        try:
            for agent in agents:
                operator.send(pod(agent, wire.PodPhase.RUNNING))
            operator.send(wire.PodListDone())
            for agent in agents:
                agent.wait_for(lambda agent=agent: agent.assignments)
            yield master, operator, agents
        finally:
            for agent in agents:
                agent.close()
            operator.close()


def pod(agent: ScriptedAgent, phase_: wire.PodPhase, **fields: Any) -> wire.PodObservation:
    """Return what the operator sees of an agent's pod."""
    return wire.PodObservation(
        node_rank=agent.rank, pod_uid=f"pod-{agent.agent_id}", phase=phase_, **fields
    )


def test_evidence_of_a_death_needs_no_time_out(tmp_path: Path) -> None:
    """The operator saw the pod fail: the world shrinks at once, a new pod is asked for."""
    with with_operator(tmp_path) as (_master, operator, agents):
        begin = time.monotonic()
        agents[1].close()
        operator.send(pod(agents[1], wire.PodPhase.FAILED, exit_code=-9, reason="Killed"))
        agents[0].wait_for(lambda: len(agents[0].assignments) == 2)
        assert time.monotonic() - begin < 3.0, "the silence limit is 5 s"
        assert agents[0].assignments[1].world_size == 1


def test_a_scale_goes_through_the_operator(tmp_path: Path) -> None:
    """The wish becomes a decision, the answer a new generation, the world one node smaller."""
    with with_operator(tmp_path) as (master, operator, agents):
        made = master.channel(Identity("j1", "user"))
        call: Any = made.unary_unary("/holdfast.v1.JobService/Scale")
        answer = call.future(codec.encode(wire.ScaleRequest(replicas=1)), timeout=20)
        (decision,) = operator.wait_for(lambda: operator.of(wire.ScaleDecision))
        assert decision.replicas == 1
        operator.send(wire.ScaleResult(decision_id=decision.decision_id, ok=True))
        operator.send(spec_of(generation=2, replicas=1))
        assert answer.result(timeout=20)
        made.close()
        agents[0].wait_for(lambda: agents[0].assignments[-1].world_size == 1)
        leave = agents[1].wait_for(lambda: agents[1].left)
        assert leave.outcome is wire.LeaveOutcome.RELEASED


def test_a_drained_node_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    """A barrier first, so that no step is lost."""
    with with_operator(tmp_path) as (master, _operator, agents):
        master.ask("DrainNode", wire.DrainNodeRequest(node_rank=1, reason="maintenance"))
        agents[0].wait_for(lambda: agents[0].assignments[-1].world_size == 1)
        agents[1].wait_for(lambda: agents[1].left)
        assert "BarrierReached" in [event.reason for event in events(master)]


def test_the_operator_is_told_of_the_end(tmp_path: Path) -> None:
    """The FinishDecision arrives, then the stream ends in order."""
    with with_operator(tmp_path, exit_when_finished=0.2) as (master, operator, agents):
        for agent in agents:
            agent.send(wire.WorkerExited(rank=agent.rank, exit_code=0))
        (finish,) = operator.wait_for(lambda: operator.of(wire.FinishDecision))
        assert finish.succeeded
        assert master.process.wait(timeout=20) == 0
        operator.wait_for(lambda: operator.over)
        assert operator.error is None
