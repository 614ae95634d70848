"""The master process put together: core, loop, services, server; its life from open to exit.

Belongs here: wiring, start and end. Does not belong here: what any of the parts does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from holdfast_master import process, reflection, service_agent, service_job, service_operator
from holdfast_master.calls import CallCounters
from holdfast_master.config import MasterConfig
from holdfast_master.gate import RoleGate
from holdfast_master.history import History
from holdfast_master.inputs import JournalNoted, PeerRefused, SpecArrived
from holdfast_master.instructions import (
    CloseSession,
    Finished,
    Record,
    Refuse,
    Reply,
    Send,
    StepDown,
    Tell,
)
from holdfast_master.journal import Journal
from holdfast_master.lookout import Lookout
from holdfast_master.loop import Loop, now
from holdfast_master.ports import Decider
from holdfast_master.questions import Questions
from holdfast_master.service_agent import AgentService
from holdfast_master.service_job import JobService, Views
from holdfast_master.service_operator import OperatorService
from holdfast_master.service_watch import WatchService
from holdfast_master.sessions import SessionTable
from holdfast_wire import channel
from holdfast_wire.messages import Fence, SpecAccepted
from holdfast_wire.reasons import EventReason

log = logging.getLogger(__name__)

STOP_SECONDS = 1.0
"""Calls that are under way when the server stops may take this long to end."""
HANDSHAKE_MS = 30_000
"""A connection that has not shown a certificate after this long is closed; gRPC's own 120 s let a
silent client hold a file four times as long."""
_HEALTH_NAMES = ("", service_agent.SERVICE, service_operator.SERVICE, service_job.SERVICE)


class ServeError(Exception):
    """The server cannot be started: names what is in the way and the remedy."""


class Ending(enum.Enum):
    """How the process's work ended."""

    FINISHED = "finished"
    """The job has ended and was shown for a while."""
    STOPPED = "stopped"
    """A signal asked for it; the job goes on without a master."""
    STEPPED_DOWN = "stepped down"
    """A newer master exists."""
    FAILED = "failed"
    """The loop broke."""


class ServedCore(Decider, Views, Protocol):
    """What is served: the core's decisions and its views."""


class Master:
    """One master process of one job."""

    def __init__(
        self,
        config: MasterConfig,
        core: ServedCore,
        journal: Journal | None,
        history: History,
        decider: Decider | None = None,
    ) -> None:
        """Wire the parts; needs a running event loop. Nothing is started yet.

        Args:
            config: settings.
            core: what is served.
            journal: takes the records; None: nothing is recorded.
            history: what earlier masters wrote.
            decider: the core as the loop is to use it; None: as it is.
        """
        self._config = config
        self._journal = journal
        self._notes = history.notes
        self.counters = CallCounters()
        """What was refused."""
        self.sessions = SessionTable()
        self._finished = asyncio.Event()
        self._stop = asyncio.Event()
        self._file_limit = process.raise_file_limit()
        self._loop = Loop(decider or core, journal, self.after_batch)
        if config.journal_dir is not None:
            self._loop.lookout = Lookout(config.journal_dir, config.epoch)
        self.keep_books: Callable[[], None] = _nothing
        """Called once a batch's records are written and shown."""
        put, push = self._loop.put, self._loop.push
        self._questions = Questions(put)
        fence = Fence(epoch=config.epoch, incarnation=config.incarnation)
        self._operator = OperatorService(
            put, push, lambda: core.status(now()), fence, self.counters
        )
        self._agents = AgentService(config.job_uid, self.sessions, put, push, self.counters)
        ancestors = {(past.epoch, past.incarnation): past.newest_event for past in history.masters}
        own = (config.epoch, config.incarnation)
        ancestors.pop(own, None)
        self.watch = WatchService(core, own, ancestors, now, self.counters)
        self._jobs = JobService(
            core, self._questions, self.watch, now, self.counters, self._loop.on_disk
        )
        self._health = health.aio.HealthServicer()
        self._loop.effects = {
            Send: self.sessions.send,
            CloseSession: self.sessions.close,
            Tell: self._operator.tell,
            Reply: self._questions.reply,
            Refuse: self._questions.refuse,
            Finished: self._note_finished,
            StepDown: self._note_step_down,
        }

    async def run(self) -> Ending:
        """Serve until the job's end, a signal or a newer master.

        Raises:
            ServeError: the port cannot be had.
        """
        server, port = self._server()
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, self.stop)
        loop_task = asyncio.create_task(self._loop.run(), name="loop")
        waits = [asyncio.create_task(self._begin(server, port)), loop_task]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not loop_task.done():
                waits[0].result()
                return await self._until_end(server, loop_task)
            return _ending_of(loop_task)
        finally:
            for task in waits:
                task.cancel()
            await server.stop(0)
            await asyncio.gather(*waits, return_exceptions=True)

    def stop(self) -> None:
        """Ask for an orderly end, as SIGTERM does: agents train on without a master."""
        self._stop.set()

    def summary(self) -> dict[str, object]:
        """Return what was counted, for the last line of the log."""
        return {
            **dataclasses.asdict(self._loop.counters),
            "refused": dict(self.counters.refused),
            "newer": self.counters.newer,
            "cut_off": self.sessions.cut_off,
        }

    def _server(self) -> tuple[grpc.aio.Server, int]:
        config = self._config
        server = grpc.aio.server(
            interceptors=[RoleGate(config.job_uid, self.counters, self._report)],
            options=[
                *channel.MASTER_SERVER_OPTIONS,
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ],
        )
        services = (self._agents, self._operator, self._jobs)
        handlers = [service.handlers() for service in services]
        server.add_generic_rpc_handlers((*handlers, *reflection.handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        address = f"{config.bind_host}:{config.port}"
        try:
            port = server.add_secure_port(address, channel.server_credentials(config.tls_dir))
        except RuntimeError as error:
            raise ServeError(
                f"bind_host and port are {address}, which cannot be listened on ({error}); "
                "name a free port, or 0 for any"
            ) from error
        return server, port

    async def _begin(self, server: grpc.aio.Server, port: int) -> None:
        await self._loop.opened.wait()
        if self._journal is not None and self._journal.trouble:
            self._loop.push(JournalNoted(EventReason.JOURNAL_TROUBLED, self._journal.trouble))
        for note in self._notes:
            self._loop.push(JournalNoted(EventReason.JOURNAL_DAMAGED, note))
        if self._config.initial_spec is not None:
            self._loop.push(SpecArrived(self._config.initial_spec))
        await server.start()
        await self._set_health(serving=True)
        self._write_endpoint(port)
        log.info(
            "serving",
            extra={
                "host": self._config.bind_host,
                "port": port,
                "job": self._config.job_name,
                "epoch": self._config.epoch,
                "incarnation": self._config.incarnation,
                "open_files": self._file_limit,
            },
        )

    async def _until_end(self, server: grpc.aio.Server, loop_task: asyncio.Task[None]) -> Ending:
        stop = asyncio.create_task(self._stop.wait())
        finished = asyncio.create_task(self._finished.wait())
        try:
            waits = (stop, finished, loop_task)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if loop_task.done():
                return _ending_of(loop_task)
            if self._finished.is_set() and not self._stop.is_set():
                linger = self._config.exit_when_finished
                await asyncio.wait((stop, loop_task), timeout=linger, return_when="FIRST_COMPLETED")
            await self._say_farewell(server)
            return Ending.FINISHED if self._finished.is_set() else Ending.STOPPED
        finally:
            stop.cancel()
            finished.cancel()

    async def _say_farewell(self, server: grpc.aio.Server) -> None:
        await self._set_health(serving=False)
        self.watch.finish()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._operator.drained()
        except TimeoutError:
            log.warning("the operator did not read its last messages")
        await server.stop(STOP_SECONDS if self._finished.is_set() else 0.1)

    async def _set_health(self, *, serving: bool) -> None:
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if serving else states.NOT_SERVING
        for name in _HEALTH_NAMES:
            await self._health.set(name, state)

    def _write_endpoint(self, port: int) -> None:
        config = self._config
        if config.endpoint_file is None:
            return
        host = config.advertised_host or config.bind_host
        if host in ("0.0.0.0", "[::]", "::"):  # noqa: S104 - compared, not bound
            host = "127.0.0.1"
        process.write_private_json(
            config.endpoint_file,
            {"host": host, "port": port, "pid": process.own_pid(), "epoch": config.epoch},
        )

    def note_journal(self, reason: str, text: str) -> None:
        """Take news of the journal from the loop's own thread; it becomes an event."""
        self._loop.push(JournalNoted(reason, text))

    def after_batch(self, records: Sequence[Record]) -> None:
        """Show watchers what a batch recorded, and look at what a new spec needs."""
        self.watch.publish(records)
        for record in records:
            fact = record.fact
            if isinstance(fact, SpecAccepted) and fact.spec is not None:
                process.warn_of_file_limit(self._file_limit, fact.spec.max_replicas)
        self.keep_books()

    def _report(self, text: str) -> None:
        self._loop.push(PeerRefused(text))

    def _note_finished(self, instruction: Finished) -> None:
        log.info(
            "the job has ended",
            extra={"succeeded": instruction.succeeded, "reason": instruction.reason},
        )
        self._finished.set()

    def _note_step_down(self, instruction: StepDown) -> None:
        log.error("stepping down: %s", instruction.text)


def _nothing() -> None:
    """Nothing is to be done after a batch."""


def _ending_of(loop_task: asyncio.Task[None]) -> Ending:
    if loop_task.exception() is None:
        return Ending.STEPPED_DOWN
    log.critical("the loop broke", exc_info=loop_task.exception())
    return Ending.FAILED
