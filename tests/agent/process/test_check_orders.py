"""An agent that is told to measure its node: real measurements under a scripted master."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest

from agents.agent_process import AgentProcess, eventually
from agents.scripted_node import Node
from holdfast_wire.messages import (
    CheckListening,
    CheckNode,
    CheckRole,
    CheckRound,
    HealthMode,
    HealthPolicy,
    Heartbeat,
    NodeChecked,
    PreflightPolicy,
    RoundStarted,
)
from holdfast_wire.resources import Resource
from masters.scripted_master import AgentStream, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


WAIT = "import time; time.sleep(600)"
PROGRAM = "holdfast_agent.health.node_check.program"


def alone(number: int) -> CheckNode:
    """The order of a round by itself."""
    round_ = CheckRound(check=7, number=number)
    return CheckNode(round=round_, role=CheckRole.ALONE, deadline_seconds=120.0)


async def answered(stream: AgentStream, number: int) -> NodeChecked:
    """Wait for the answer of a round."""
    wanted = CheckRound(check=7, number=number)
    return await stream.wait(NodeChecked, lambda one: one.round == wanted, within=150)


def measuring(agent: AgentProcess) -> list[psutil.Process]:
    """The processes that measure for an agent."""
    found = []
    for process in psutil.Process(agent.pid).children(recursive=True):
        try:
            if PROGRAM in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


async def run_ranks(stream: AgentStream, agent: AgentProcess) -> None:
    """Have a round started; no process measures then."""
    stream.send(assignment(await stream.prepare_store("s1"), nproc=1), 1)
    await stream.wait(RoundStarted)
    await eventually(lambda: not measuring(agent), within=30)


async def test_a_node_measures_itself_beside_its_connection(node: Node) -> None:
    """Every figure comes, heartbeats go on, and the same order again has the same answer."""
    _, stream = await node.start(WAIT)
    before = len(stream.all(Heartbeat))
    stream.send(alone(0))
    answer = await answered(stream, 0)
    found = {one.resource: one for one in answer.figures}
    wanted = {Resource.MEMORY_BANDWIDTH, Resource.SHM_WRITE, Resource.CPU_MATMUL}
    assert wanted <= found.keys()
    assert all(found[one].value > 0 and not found[one].error for one in wanted)
    assert " x " in answer.kind
    assert len(stream.all(Heartbeat)) > before + 2
    stream.send(alone(0))
    await eventually(lambda: len(stream.all(NodeChecked)) == 2, within=30)
    assert stream.all(NodeChecked) == [answer, answer]


async def test_the_process_that_measures_stays_for_the_next_round(node: Node) -> None:
    """Torch is imported once for a check, and ranks start beside no such process."""
    agent, stream = await node.start(WAIT)
    stream.send(alone(0))
    await answered(stream, 0)
    before = measuring(agent)
    stream.send(alone(1))
    await answered(stream, 1)
    assert len(before) == 1
    assert measuring(agent) == before
    await run_ranks(stream, agent)


async def test_torch_is_imported_beside_the_zygote_where_checks_are_wanted(node: Node) -> None:
    """The process that does so measures in the first round."""
    preflight = PreflightPolicy(mode=HealthMode.REPORT)
    node.master.welcome = replace(node.master.welcome, health=HealthPolicy(preflight=preflight))
    agent = node.agent(WAIT, forked=False)
    stream = await node.master.stream(0, within=90)
    before = await eventually(lambda: measuring(agent), within=60)
    await stream.warm()
    stream.send(alone(0))
    answer = await answered(stream, 0)
    assert not [one.error for one in answer.figures if one.error]
    assert measuring(agent) == before


async def test_a_measurement_that_dies_is_the_nodes_figure(node: Node) -> None:
    """The resource is named, although the agent reaps every child that is not known."""
    agent, stream = await node.start(WAIT)
    stream.send(alone(0))
    (child,) = await eventually(lambda: measuring(agent), within=60)
    child.kill()
    answer = await answered(stream, 0)
    assert [one.error for one in answer.figures if one.error] == ["its process ended by signal 9"]


async def test_two_nodes_measure_what_lies_between_them(node: Node) -> None:
    """The one that listens says where, and both have the figures."""
    _, first = await node.start(WAIT)
    node.agent(WAIT, node_rank=1)
    second = await node.master.warm_stream(1)
    first.send(replace(alone(1), role=CheckRole.SERVE, partner=1))
    place = await first.wait(CheckListening)
    join = replace(alone(1), role=CheckRole.JOIN, partner=0)
    second.send(replace(join, host=place.host, port=place.port))
    for stream, partner in ((first, 1), (second, 0)):
        answer = await answered(stream, 1)
        assert answer.partner == partner
        found = {one.resource: one.value for one in answer.figures if not one.error}
        assert {Resource.LINK_BANDWIDTH, Resource.LINK_LATENCY} <= found.keys()


async def test_ranks_come_before_measurements(node: Node) -> None:
    """An assignment ends a measurement, and none begins while ranks run."""
    agent, stream = await node.start(WAIT)
    stream.send(alone(0))
    await eventually(lambda: bool(measuring(agent)), within=60)
    await run_ranks(stream, agent)
    stream.send(alone(1))
    assert "ranks run" in (await answered(stream, 1)).refused
    assert not measuring(agent)
