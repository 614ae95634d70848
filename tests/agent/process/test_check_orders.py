"""An agent that is told to measure its node: real measurements under a scripted master."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import psutil
import pytest

from agents.agent_process import AgentProcess, Script, StartAgent, eventually
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
from masters.scripted_master import AgentStream, ScriptedMaster, assignment

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]


WAIT = "import time; time.sleep(600)"
PROGRAM = "holdfast_agent.health.node_check.program"


def alone(number: int, seconds: float = 120.0) -> CheckNode:
    """The order of a round by itself."""
    round_ = CheckRound(check=7, number=number)
    return CheckNode(round=round_, role=CheckRole.ALONE, deadline_seconds=seconds)


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


async def test_a_node_measures_itself_beside_its_connection(
    master: ScriptedMaster, start_agent: StartAgent, script: Script
) -> None:
    """Every figure comes, heartbeats go on, and the same order again has the same answer."""
    start_agent(script(WAIT))
    stream = await master.warm_stream()
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


async def test_the_process_that_measures_stays_for_the_next_round(
    master: ScriptedMaster, start_agent: StartAgent, script: Script
) -> None:
    """Torch is imported once for a check, and ranks start beside no such process."""
    agent = start_agent(script(WAIT))
    stream = await master.warm_stream()
    stream.send(alone(0))
    await answered(stream, 0)
    before = measuring(agent)
    stream.send(alone(1))
    await answered(stream, 1)
    assert len(before) == 1
    assert measuring(agent) == before
    store = await stream.prepare_store("s1")
    stream.send(assignment(store, nproc=1), 1)
    await stream.wait(RoundStarted)
    await eventually(lambda: not measuring(agent), within=30)


async def test_torch_is_imported_beside_the_zygote_where_checks_are_wanted(
    master: ScriptedMaster, start_agent: StartAgent, script: Script
) -> None:
    """The process that does so measures in the first round."""
    preflight = PreflightPolicy(mode=HealthMode.REPORT)
    master.welcome = replace(master.welcome, health=HealthPolicy(preflight=preflight))
    agent = start_agent(script(WAIT), forked=False)
    stream = await master.stream(0, within=90)
    await eventually(lambda: bool(measuring(agent)), within=60)
    before = measuring(agent)
    await stream.warm()
    stream.send(alone(0))
    answer = await answered(stream, 0)
    assert not [one.error for one in answer.figures if one.error]
    assert measuring(agent) == before


async def test_a_measurement_that_dies_is_the_nodes_figure(
    master: ScriptedMaster, start_agent: StartAgent, script: Script
) -> None:
    """The resource is named, although the agent reaps every child that is not known."""
    agent = start_agent(script(WAIT))
    stream = await master.warm_stream()
    stream.send(alone(0))
    await eventually(lambda: bool(measuring(agent)), within=60)
    os.kill(measuring(agent)[0].pid, signal.SIGKILL)
    answer = await answered(stream, 0)
    assert [one.error for one in answer.figures if one.error] == ["its process ended by signal 9"]


async def test_two_nodes_measure_what_lies_between_them(
    master: ScriptedMaster, start_agent: StartAgent, script: Script
) -> None:
    """The one that listens says where, and both have the figures."""
    start_agent(script(WAIT))
    start_agent(script(WAIT), node_rank=1)
    first, second = await master.stream(0, within=90), await master.stream(1, within=90)
    await first.warm()
    await second.warm()
    pair = CheckRound(check=7, number=1)
    first.send(CheckNode(round=pair, role=CheckRole.SERVE, partner=1, deadline_seconds=120))
    place = await first.wait(CheckListening)
    second.send(
        CheckNode(
            round=pair,
            role=CheckRole.JOIN,
            partner=0,
            host=place.host,
            port=place.port,
            deadline_seconds=120,
        )
    )
    for stream, partner in ((first, 1), (second, 0)):
        answer = await answered(stream, 1)
        assert answer.partner == partner
        found = {one.resource: one.value for one in answer.figures if not one.error}
        assert {Resource.LINK_BANDWIDTH, Resource.LINK_LATENCY} <= found.keys()


async def test_ranks_come_before_measurements(
    master: ScriptedMaster, start_agent: StartAgent, script: Script
) -> None:
    """An assignment ends a measurement, and none begins while ranks run."""
    agent = start_agent(script(WAIT))
    stream = await master.warm_stream()
    stream.send(alone(0))
    await eventually(lambda: bool(measuring(agent)), within=60)
    store = await stream.prepare_store("s1")
    stream.send(assignment(store, nproc=1), 1)
    await stream.wait(RoundStarted)
    await eventually(lambda: not measuring(agent), within=30)
    stream.send(alone(1))
    assert "ranks run" in (await answered(stream, 1)).refused
    assert not measuring(agent)
