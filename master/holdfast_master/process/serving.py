"""The master process put together: core, loop, services, server; its life from open to exit."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from holdfast_master.core import Core
from holdfast_master.inputs import JournalNoted, Moment, OperatorMessage, PeerRefused
from holdfast_master.instructions import (
    CloseSession,
    Finished,
    KeepEvidence,
    Record,
    Refuse,
    Reply,
    Send,
    SendToOperator,
    StepDown,
)
from holdfast_master.job.requests.figures import JobFigures
from holdfast_master.journal.reader import History
from holdfast_master.journal.writer import Journal
from holdfast_master.loop.loop import Decider, MasterLoop, now
from holdfast_master.process import os_process
from holdfast_master.process.evidence_store import EvidenceStore
from holdfast_master.process.settings import MasterConfig
from holdfast_master.process.storage import JournalWatch, Storage
from holdfast_master.server import agent_service, job_service, operator_service
from holdfast_master.server.agent_service import AgentService
from holdfast_master.server.authz import RoleGate
from holdfast_master.server.connections import ConnectionCounter
from holdfast_master.server.job_service import JobService
from holdfast_master.server.operator_service import OperatorService
from holdfast_master.server.pending_requests import Questions
from holdfast_master.server.rpc import CallCounters
from holdfast_master.server.sessions import SessionTable
from holdfast_master.server.watch_service import Views, WatchService
from holdfast_wire import channel
from holdfast_wire.messages import Fence, SpecAccepted
from holdfast_wire.reasons import EventReason

if TYPE_CHECKING:
    from holdfast_master.metrics.exporter import MetricsExporter
    from holdfast_master.metrics.spans import RecoverySpans

log = logging.getLogger(__name__)

STOP_SECONDS = 1.0
"""Calls that are under way when the server stops may take this long to end."""
HANDSHAKE_MS = 30_000
"""A connection that has not shown a certificate after this long is closed; gRPC's own 120 s let a
silent client hold a file four times as long."""
_SERVICE_NAMES = (agent_service.SERVICE, operator_service.SERVICE, job_service.SERVICE)


class ServeError(Exception):
    """The server cannot be started: names what is in the way and the remedy."""


class ProcessEnd(enum.Enum):
    """Ways in which the process's work ends."""

    FINISHED = "finished"
    """The job has ended and was shown for a while."""
    STOPPED = "stopped"
    """A signal asked for it; the job goes on without a master."""
    STEPPED_DOWN = "stepped down"
    """A newer master exists."""
    FAILED = "failed"
    """The loop broke."""


class ServedCore(Decider, Views, Protocol):
    """The served core: its decisions and its views."""

    def figures(self, now: Moment) -> JobFigures:
        """The job's figures for its metrics."""


class Master:
    """One master process of one job."""

    def __init__(
        self,
        config: MasterConfig,
        core: ServedCore,
        journal: Journal | None,
        history: History,
        decider: Decider | None = None,
        evidence: EvidenceStore | None = None,
    ) -> None:
        """Wire the parts; needs a running event loop. Nothing is started yet.

        decider: the core as the loop is to use it, such as one that is recorded; None: as it is.
        """
        self._config, self._journal, self._notes = config, journal, history.notes
        self.counters = CallCounters()
        """Counts of refused calls."""
        self.connections = ConnectionCounter()
        self._finished, self._stop = asyncio.Event(), asyncio.Event()
        self._file_limit = os_process.raise_file_limit()
        self._loop = MasterLoop(decider or core, journal, self.after_batch)
        if config.journal_dir is not None:
            self._loop.lookout = JournalWatch(config.journal_dir, config.epoch)
        self.after_records: Callable[[], None] = lambda: None
        """Called once a batch's records are written and shown."""
        self._evidence = evidence or EvidenceStore(None)
        self.sessions, self._questions = SessionTable(), Questions(self._loop.put)
        self._services = self._make_services(core, history)
        self._metrics = _metrics(config, core)
        self._spans = _spans(config)
        self._health = health.aio.HealthServicer()
        self._loop.effects = {
            Send: self.sessions.send,
            CloseSession: self.sessions.close,
            SendToOperator: self._operator.send,
            Reply: self._questions.reply,
            Refuse: self._questions.refuse,
            KeepEvidence: self._evidence.keep,
            Finished: self._note_finished,
            StepDown: lambda down: log.error("stepping down: %s", down.text),
        }

    def _make_services(
        self, core: ServedCore, history: History
    ) -> tuple[AgentService, OperatorService, JobService]:
        config, counters, put, push = self._config, self.counters, self._loop.put, self._loop.push
        own = (config.epoch, config.incarnation)
        fence = Fence(epoch=config.epoch, incarnation=config.incarnation)
        ancestors = {(past.epoch, past.incarnation): past.newest_event for past in history.masters}
        ancestors.pop(own, None)
        self.watch = WatchService(core, own, ancestors, now, counters)
        self._operator = OperatorService(put, push, lambda: core.status(now()), fence, counters)
        return (
            AgentService(config.job_uid, self.sessions, put, push, counters),
            self._operator,
            JobService(
                core, self._questions, self.watch, now, counters, self._loop.on_disk, self._evidence
            ),
        )

    async def run(self) -> ProcessEnd:
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
        counting = asyncio.create_task(self.connections.run(), name="connections")
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not loop_task.done():
                waits[0].result()
                return await self._until_end(server, loop_task)
            return _ending_of(loop_task)
        finally:
            for task in (*waits, counting):
                task.cancel()
            await server.stop(0)
            await asyncio.gather(*waits, counting, return_exceptions=True)
            await asyncio.to_thread(self._evidence.close)
            if self._metrics is not None:
                await asyncio.to_thread(self._metrics.close)
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)

    def stop(self) -> None:
        """Ask for an orderly end, as SIGTERM does: agents train on without a master."""
        self._stop.set()

    def summary(self) -> dict[str, object]:
        """Return the counts, for the last line of the log."""
        return {
            **dataclasses.asdict(self._loop.counters),
            "refused": dict(self.counters.refused),
            "newer": self.counters.newer,
            "unidentified": self.connections.unidentified,
            "cut_off": self.sessions.cut_off,
        }

    def _server(self) -> tuple[grpc.aio.Server, int]:
        config = self._config
        server = grpc.aio.server(
            interceptors=[RoleGate(config.job_uid, self.counters, self.connections, self._report)],
            options=[
                *channel.MASTER_SERVER_OPTIONS,
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ],
        )
        handlers = [service.handlers() for service in self._services]
        server.add_generic_rpc_handlers((*handlers, *_reflection_handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        address = f"{config.bind_host}:{config.port}"
        try:
            credentials = channel.server_credentials(config.tls_dir, self.connections.opened)
            port = server.add_secure_port(address, credentials)
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
            self._loop.push(OperatorMessage(self._config.initial_spec))
        await server.start()
        await self._set_health(serving=True)
        self._write_endpoint(port)
        self._serve_metrics()
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

    def _serve_metrics(self) -> None:
        """Serve metrics where they are asked for; the job goes on where their port is taken."""
        wanted = self._config.metrics_port
        if self._metrics is None or wanted is None:
            return
        host = self._config.bind_host
        try:
            port = self._metrics.start(host, wanted)
        except OSError as error:
            log.error(  # noqa: TRY400 - a port that is taken needs no traceback
                "metrics_port is %d, which cannot be listened on (%s); no metrics are served, name "
                "a free port, or 0 for any",
                wanted,
                error,
            )
            return
        log.info("serving metrics", extra={"host": host, "port": port})

    async def _until_end(
        self, server: grpc.aio.Server, loop_task: asyncio.Task[None]
    ) -> ProcessEnd:
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
            return ProcessEnd.FINISHED if self._finished.is_set() else ProcessEnd.STOPPED
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
        for name in ("", *_SERVICE_NAMES):
            await self._health.set(name, state)

    def _write_endpoint(self, port: int) -> None:
        config = self._config
        if config.endpoint_file is None:
            return
        host = config.advertised_host or config.bind_host
        if host in ("0.0.0.0", "[::]", "::"):  # noqa: S104 - compared, not bound
            host = "127.0.0.1"
        os_process.write_private_json(
            config.endpoint_file,
            {"host": host, "port": port, "pid": os.getpid(), "epoch": config.epoch},
        )

    def note_journal(self, reason: str, text: str) -> None:
        """Take news of the journal from the loop's own thread; it becomes an event."""
        self._loop.push(JournalNoted(reason, text))

    def after_batch(self, records: Sequence[Record]) -> None:
        """Show watchers what a batch recorded, and look at what a new spec needs."""
        self.watch.publish(records)
        if self._metrics is not None:
            self._metrics.record(records)
        if self._spans is not None:
            self._spans.record(records)
        for record in records:
            fact = record.fact
            if isinstance(fact, SpecAccepted) and fact.spec is not None:
                os_process.warn_of_file_limit(self._file_limit, fact.spec.max_replicas)
        self.after_records()

    def _report(self, text: str) -> None:
        self._loop.push(PeerRefused(text))

    def _note_finished(self, instruction: Finished) -> None:
        log.info(
            "the job has ended",
            extra={"succeeded": instruction.succeeded, "reason": instruction.reason},
        )
        self._finished.set()


def _metrics(config: MasterConfig, core: ServedCore) -> MetricsExporter | None:
    if config.metrics_port is None:
        return None
    # Loaded only here: 0.1 s that a master without metrics, as most tests', does not need.
    from holdfast_master.metrics.exporter import MetricsExporter  # noqa: PLC0415

    return MetricsExporter((config.namespace, config.job_name), lambda: core.figures(now()))


def _ending_of(loop_task: asyncio.Task[None]) -> ProcessEnd:
    if loop_task.exception() is None:
        return ProcessEnd.STEPPED_DOWN
    log.critical("the loop broke", exc_info=loop_task.exception())
    return ProcessEnd.FAILED


async def serve(config: MasterConfig, storage: Storage) -> ProcessEnd:
    """Run one master process, restored from its storage where there is any history.

    Raises:
        ServeError: the port cannot be had.
        CredentialsError: the certificate files cannot be read.
    """
    core = Core(config.identity, config.core, storage.history.records)
    journal, history, decider = storage.journal, storage.history, storage.decider(core)
    master = Master(config, core, journal, history, decider, storage.evidence)
    master.after_records = lambda: storage.after_batch(core.job.state, master.note_journal)
    try:
        ending = await master.run()
        log.info("exiting: %s", ending.value, extra=master.summary())
        return ending
    finally:
        await asyncio.to_thread(storage.close)


_REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The package serves v1alpha only; v1 has the same messages, and newer clients ask for it first."""


def _reflection_handlers() -> list[grpc.GenericRpcHandler]:
    """Server reflection, so that grpcurl works without the .proto files."""
    names = (*_SERVICE_NAMES, "grpc.health.v1.Health", *_REFLECTIONS)
    servicer: Any = reflection.aio.ReflectionServicer(names)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in _REFLECTIONS
    ]


def _spans(config: MasterConfig) -> RecoverySpans | None:
    if not config.traces:
        return None
    try:
        from holdfast_master.metrics.spans import RecoverySpans, make_exporter  # noqa: PLC0415
    except ImportError as error:
        log.error(  # noqa: TRY400 - a missing library needs no traceback
            "traces is %s, but %s is not installed; no spans are sent, install holdfast[traces]",
            config.traces,
            error.name,
        )
        return None
    return RecoverySpans((config.namespace, config.job_name), make_exporter(config.traces))
