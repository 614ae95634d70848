"""The part of an agent's life inside the event loop: wiring, signals, children, the summary.

Imports grpc through `agent`, so it must not be imported before the zygote runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast import loop_errors
from holdfast.page import Page
from holdfast_agent import failure_summary, runner_watch, signals, zygote
from holdfast_agent.agent import Agent
from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_agent.config import host_address
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import StandaloneError
from holdfast_agent.health.node_check.process import Interrupt
from holdfast_agent.master_link import hello
from holdfast_agent.master_link.hello import Self
from holdfast_agent.master_link.peers import PeerServer
from holdfast_agent.master_link.session import MasterDial
from holdfast_agent.policies.exit_codes import ExitCode, heeded, is_job_over
from holdfast_agent.shutdown import End
from holdfast_agent.workers import child_reaper
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.log_files import LogKeeper
from holdfast_wire import loopback
from holdfast_wire.messages import GetRoundResponse

if TYPE_CHECKING:
    from holdfast_agent.checkpoint.parts import PartReader
    from holdfast_agent.standalone import Standalone

log = logging.getLogger(__name__)

ZYGOTE_END_SECONDS = 5.0
ARENAS_END_SECONDS = 5.0
"""Seconds for writes to storage when the agent ends; the trainers are gone by then."""


async def work(
    settings: Settings,
    inherited: Mapping[str, str],
    page: Page,
    process: zygote.Zygote,
    logs: LogKeeper,
    own_master: Standalone | None,
) -> int:
    """Run one agent; return its exit code."""
    if own_master is not None:
        settings = own_master.settings
    own_address = await asyncio.to_thread(_address, settings)
    arenas = Arenas(settings.arena_dir, settings.job_uid, settings.arena_socket)
    measuring = Interrupt()
    tools = AgentContext(
        settings=settings,
        arenas=arenas,
        page=page,
        process=process,
        control=zygote.ZygoteControl(process),
        logs=logs,
        inherited=inherited,
        spared=lambda: (*(own_master.pids if own_master else ()), *measuring.pids),
    )
    dial = MasterDial(
        endpoint=own_master.endpoint if own_master else lambda: settings.master,
        job_uid=settings.job_uid,
        tls_dir=settings.tls_dir,
    )
    served: list[Agent] = []
    peers = PeerServer(lambda: _known(served[0]), arenas)
    own = Self(
        agent_id=secrets.token_hex(8),
        address=own_address,
        peer_address=await peers.start(own_address, settings.tls_dir),
        devices=hello.devices(inherited),
        unmanaged=settings.standalone,
    )
    jitter = random.Random(os.urandom(8))  # noqa: S311 - only jitter
    agent = Agent(tools, own, dial, jitter, measuring)
    served.append(agent)
    guard = asyncio.create_task(_keep_master(own_master, agent)) if own_master else None
    arenas.open(agent.report, lambda: _reader(agent, settings))
    over = False
    try:
        end = await _until_end(agent, tools, peers)
        over = is_job_over(end.outcome)
        return end.code
    finally:
        if guard is not None:
            guard.cancel()
        await arenas.close(ARENAS_END_SECONDS, over=over)
        loop_errors.say(log)


def _reader(agent: Agent, settings: Settings) -> PartReader:
    """Return the reader of other agents' memory; most agents never need it."""
    from holdfast_agent.checkpoint.parts import PartReader

    return PartReader(agent.accepted_fence, settings.job_uid, settings.tls_dir)


def _known(agent: Agent) -> GetRoundResponse:
    """Return the answer for a peer that has no master."""
    accepted, current = agent.accepted, agent.runner.current
    return GetRoundResponse(
        fence=accepted.fence(),
        has_master=agent.session.connected,
        barrier=current.stop_barrier
        if current is not None and current.number == accepted.round
        else None,
    )


async def _keep_master(own_master: Standalone, agent: Agent) -> None:
    """Replace a master that ended on its own; without one the run has failed."""
    while True:
        await _end_of(own_master.pids[0])
        if agent.ending.begun:
            return
        try:
            news = own_master.revive()
        except StandaloneError as error:
            agent.ending.fail(str(error))
            return
        if news:
            log.warning("%s", news)


async def _end_of(child: int) -> None:
    """Wait for the end of a child that is not reaped yet."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(child)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _until_end(agent: Agent, tools: AgentContext, peers: PeerServer) -> End:
    loop = asyncio.get_running_loop()
    launch = tools.settings.launch
    asked_for = "signals_to_handle" in launch.given
    for number in heeded(launch.signals, signals.ignored(), asked_for=asked_for):
        loop.add_signal_handler(number, agent.on_signal, number)
    loop.add_signal_handler(
        signal.SIGCHLD,
        lambda: agent.restarts.on_reaped(
            child_reaper.reap_adopted({tools.process.pid, *tools.spared()})
        ),
    )
    runner = _watch_runner(agent, tools.settings.arena_socket)
    try:
        end = await agent.run()
    finally:
        if runner >= 0:
            loop.remove_reader(runner)
            os.close(runner)
        await peers.stop()
    if end.code == ExitCode.FAILED:
        failure_summary.show(agent.runner, end, tools.settings.launch.script)
    await agent.zygote.close(tools.process, ZYGOTE_END_SECONDS)
    return end


def _watch_runner(agent: Agent, arena_socket: int) -> int:
    """End the agent when its local runner ends; return the watched descriptor, or -1."""
    if arena_socket < 0:
        return -1
    try:
        runner = runner_watch.open_runner(arena_socket)
    except runner_watch.RunnerGoneError as error:
        agent.ending.fail(str(error))
        return -1
    if runner >= 0:
        asyncio.get_running_loop().add_reader(runner, _on_runner_end, agent, runner)
    return runner


def _on_runner_end(agent: Agent, runner: int) -> None:
    asyncio.get_running_loop().remove_reader(runner)  # otherwise it stays readable
    agent.ending.fail("the runner has ended: nobody looks after this agent")


def _address(settings: Settings) -> str:
    launch = settings.launch
    if launch.local_addr is not None:
        return host_address.of_this_machine(launch.local_addr, launch.source("local_addr"))
    return host_address.towards(settings.master) if settings.master else loopback.address()
