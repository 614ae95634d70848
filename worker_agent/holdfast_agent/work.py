"""The part of an agent's life inside the event loop: wiring, signals, children, the summary.

Imports grpc by way of `agent`, so it must not be imported before the zygote runs.
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

from holdfast import faults
from holdfast.page import Page
from holdfast_agent import address, family, greeting, summary, zygote
from holdfast_agent.agent import Agent
from holdfast_agent.arenas import Arenas
from holdfast_agent.config import Settings
from holdfast_agent.control import Control
from holdfast_agent.decide.leaving import ExitCode, is_job_over
from holdfast_agent.ending import End
from holdfast_agent.errors import StandaloneError
from holdfast_agent.greeting import Self
from holdfast_agent.logs import LogKeeper
from holdfast_agent.peers import PeerServer
from holdfast_agent.session import Dial
from holdfast_agent.tools import Tools
from holdfast_wire.messages import GetRoundResponse

if TYPE_CHECKING:
    from holdfast_agent.parts import PartReader
    from holdfast_agent.standalone import Standalone

log = logging.getLogger(__name__)

ZYGOTE_END_SECONDS = 5.0
MASTER_CHECK_SECONDS = 0.2
ARENAS_END_SECONDS = 5.0
"""For what is being written when the agent ends; its trainers are gone, nobody waits for it."""


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
    arenas = Arenas(settings.arena_dir, settings.job_uid, settings.arena_socket)
    tools = Tools(
        settings=settings,
        arenas=arenas,
        page=page,
        process=process,
        control=Control(process),
        logs=logs,
        inherited=inherited,
        spared=(lambda: own_master.pids) if own_master else tuple,
    )
    dial = Dial(
        endpoint=own_master.endpoint if own_master else lambda: settings.master,
        job_uid=settings.job_uid,
        tls_dir=settings.tls_dir,
    )
    own_address = await asyncio.to_thread(_address, settings)
    served: list[Agent] = []
    peers = PeerServer(lambda: _known(served[0]), arenas)
    own = Self(
        agent_id=secrets.token_hex(8),
        address=own_address,
        peer_address=await peers.start(own_address, settings.tls_dir),
        devices=greeting.devices(inherited),
        unmanaged=settings.standalone,
    )
    agent = Agent(tools, own, dial, random.Random(os.urandom(8)))  # noqa: S311 - only jitter
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
        faults.say(log)


def _reader(agent: Agent, settings: Settings) -> PartReader:
    """Return the way to other agents' memory; most agents never need it."""
    from holdfast_agent.parts import PartReader

    return PartReader(agent.accepted_fence, settings.job_uid, settings.tls_dir)


def _known(agent: Agent) -> GetRoundResponse:
    """Return what a peer that has no master is told."""
    accepted, current = agent.accepted, agent.runner.current
    return GetRoundResponse(
        fence=accepted.fence(),
        has_master=agent.session.connected,
        arm=current.boundary if current is not None and current.number == accepted.round else None,
    )


async def _keep_master(own_master: Standalone, agent: Agent) -> None:
    """Give a master that ended on its own a successor; without one the run has failed."""
    while not agent.ending.begun:
        await asyncio.sleep(MASTER_CHECK_SECONDS)
        try:
            news = own_master.revive()
        except StandaloneError as error:
            agent.ending.fail(str(error))
            return
        if news:
            log.warning("%s", news)


async def _until_end(agent: Agent, tools: Tools, peers: PeerServer) -> End:
    loop = asyncio.get_running_loop()
    for number in tools.settings.launch.signals:
        loop.add_signal_handler(number, agent.on_signal, number)
    loop.add_signal_handler(
        signal.SIGCHLD, lambda: family.reap_adopted({tools.process.pid, *tools.spared()})
    )
    try:
        end = await agent.run()
    finally:
        await peers.stop()
    if end.code == ExitCode.FAILED:
        summary.show(agent.runner, end, tools.settings.launch.script)
    await agent.zygote.close(tools.process, ZYGOTE_END_SECONDS)
    return end


def _address(settings: Settings) -> str:
    if settings.launch.local_addr is not None:
        return address.resolve(settings.launch.local_addr)
    return address.towards(settings.master) if settings.master else address.LOOPBACK
