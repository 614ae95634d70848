"""The part of an agent's life inside the event loop: wiring, signals, children, the summary.

Imports grpc through `agent`, so it must not be imported before the zygote runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import random
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast import loop_errors
from holdfast.page import Page
from holdfast_agent import signals
from holdfast_agent.agent import Agent, AgentParts
from holdfast_agent.checkpoint.arenas import Arenas
from holdfast_agent.config import host_address
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import StandaloneError
from holdfast_agent.health.node_check.process import Interrupt
from holdfast_agent.master_link.peers import PeerServer
from holdfast_agent.master_link.session import MasterSession, identity
from holdfast_agent.policies.exit_codes import ExitCode, heeded, is_job_over
from holdfast_agent.workers.context import AgentContext
from holdfast_agent.workers.log_files import LogKeeper
from holdfast_agent.workers.runner import RoundRunner
from holdfast_agent.workers.shutdown import End, Shutdown
from holdfast_agent.zygote.handle import Zygote
from holdfast_agent.zygote.process_tree import reap_adopted
from holdfast_wire import loopback
from holdfast_wire.messages import Fence, WorkerExited

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
    process: Zygote,
    logs: LogKeeper,
    own_master: Standalone | None,
) -> int:
    """Run one agent; return its exit code."""
    if own_master is not None:
        settings = own_master.settings
    address = await asyncio.to_thread(_address, settings)
    arenas = Arenas(settings.arena_dir, settings.job_uid, settings.arena_socket)
    measuring = Interrupt()
    tools = AgentContext(
        settings=settings,
        arenas=arenas,
        page=page,
        process=process,
        logs=logs,
        inherited=inherited,
        spared=lambda: (*(own_master.pids if own_master else ()), *measuring.pids),
    )
    endpoint = own_master.endpoint if own_master else lambda: settings.master
    jitter = random.Random(os.urandom(8))  # noqa: S311 - nothing secret
    session = MasterSession(settings, endpoint, jitter)
    parts = AgentParts(tools, session, address, measuring)
    peers = PeerServer(parts.masterless.known, arenas)
    own = dataclasses.replace(
        identity(settings, secrets.token_hex(8), address),
        topology=settings.topology,
        devices=_devices(inherited),
        peer_address=await peers.start(address, settings.tls_dir),
        unmanaged=settings.standalone,
        keeps_checkpoints=True,
        knows_goes_on=True,
        gathers=True,
    )
    agent = Agent(tools, own, parts)
    guard = asyncio.create_task(_keep_master(own_master, parts.shutdown)) if own_master else None
    arenas.open(session.report, partial(_reader, session, settings))
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


def _devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of this node's accelerators, without starting a CUDA context."""
    import torch

    if not torch.cuda.is_available():
        return ("cpu",)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(torch.cuda.device_count()))
    return tuple(f"cuda:{name}" for name in names)


def _reader(session: MasterSession, settings: Settings) -> PartReader:
    """Return the reader of other agents' memory; most agents never need it."""
    from holdfast_agent.checkpoint.parts import PartReader

    def fence(number: int) -> Fence:
        return dataclasses.replace(session.accepted, round=number)

    return PartReader(fence, settings.job_uid, settings.tls_dir)


async def _keep_master(own_master: Standalone, shutdown: Shutdown) -> None:
    """Replace a master that ended on its own; without one the run has failed."""
    while True:
        await _end_of(own_master.pids[0])
        if shutdown.started:
            return
        try:
            news = own_master.revive()
        except StandaloneError as error:
            shutdown.fail(str(error))
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
        lambda: agent.parts.zygote.on_reaped(reap_adopted({tools.process.pid, *tools.spared()})),
    )
    runner_fd = _watch_runner(agent.parts.shutdown, tools.settings.arena_socket)
    try:
        end = await agent.run()
    finally:
        if runner_fd >= 0:
            loop.remove_reader(runner_fd)
            os.close(runner_fd)
        await peers.stop()
    if end.code == ExitCode.FAILED:
        _show_summary(agent.parts.runner, end, tools.settings.launch.script)
    await agent.parts.zygote.close(ZYGOTE_END_SECONDS)
    return end


def _watch_runner(shutdown: Shutdown, arena_socket: int) -> int:
    """End the agent when its local runner ends; return the watched descriptor, or -1."""
    if arena_socket < 0:
        return -1
    try:
        runner_fd = open_runner(arena_socket)
    except ProcessLookupError:
        shutdown.fail("the runner ended before its agent began")
        return -1
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(runner_fd)  # otherwise it stays readable
        shutdown.fail("the runner has ended: nobody looks after this agent")

    if runner_fd >= 0:
        loop.add_reader(runner_fd, on_end)
    return runner_fd


def _address(settings: Settings) -> str:
    launch = settings.launch
    if launch.local_addr is not None:
        return host_address.of_this_machine(launch.local_addr, launch.source("local_addr"))
    return host_address.towards(settings.master) if settings.master else loopback.address()


def _show_summary(runner: RoundRunner, end: End, name: str) -> None:
    """Write the reason of a failed job to stderr, and the culprit's error to the parent's file."""
    if runner.exits.failures:
        sys.stderr.write(f"{_report(name, runner.exits.failures)}\n")
    sys.stderr.write(f"holdfast-run: the job failed: {end.reason}\n")


def _report(name: str, failures: Mapping[int, tuple[WorkerExited, str]]) -> str:
    from torch.distributed.elastic.multiprocessing.errors import (
        ChildFailedError,
        ProcessFailure,
        get_error_handler,
    )

    error = ChildFailedError(
        name,
        {
            rank: ProcessFailure(one.local_rank, one.pid, one.exit_code, error_file)
            for rank, (one, error_file) in failures.items()
        },
    )
    _, first = error.get_first_failure()
    if os.environ.get("TORCHELASTIC_ERROR_FILE") and os.path.isfile(first.error_file):  # noqa: PTH113
        # A launcher above this one gets the root cause, as from torchrun's @record.
        get_error_handler().dump_error_file(first.error_file, first.exitcode)
    return str(error)


_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid and gid, in SO_PEERCRED's form."""


def open_runner(arena_socket: int) -> int:
    """Return a pidfd of the runner, readable when it has ended; -1: no runner is known.

    arena_socket: Inherited descriptor of HOLDFAST_ARENA_SOCKET; it stays open.

    Raises ProcessLookupError: the runner has ended.
    """
    try:
        with socket.socket(fileno=os.dup(arena_socket)) as other_end:
            if (other_end.family, other_end.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                return -1  # by now the number is another process's
            size = _CREDENTIALS.size
            made_by = other_end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = _CREDENTIALS.unpack(made_by)
        return os.pidfd_open(pid) if pid not in (0, os.getpid()) else -1
    except ProcessLookupError:
        raise
    except OSError:
        return -1  # a wrapper has closed it, or it is no socket
