"""`holdfast-operator`: reconciles every ElasticJob of a cluster, until a signal ends it.

Exit codes: 0 after SIGTERM or SIGINT; 1 an error of ours, or a watch that ended; 2 a setting
cannot be used; 3 the Lease was lost.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import prometheus_client as prometheus
from aiohttp import web

from holdfast_operator import logs
from holdfast_operator.election import Election, LeaseLostError
from holdfast_operator.events.recorder import Reporter
from holdfast_operator.handlers import watch_jobs
from holdfast_operator.job_cache import SeenJob
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import KubeError
from holdfast_operator.kube.namespaces import WatchedNamespace, WatchedNamespaces
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.nodes.reflector import NodeReflector
from holdfast_operator.nodes.strikes import NodeStrike
from holdfast_operator.pods.record import PodRecord
from holdfast_operator.reconcile import Reconciler
from holdfast_operator.root_key import RootKey
from holdfast_operator.settings import OperatorSettings, SettingsError, Switch, read_settings
from holdfast_operator.state.job_state import Key
from holdfast_operator.work_queue import WorkQueue
from holdfast_wire.strikes import StrikeCause

_log = logging.getLogger(__name__)
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_LEASE: Final = 3
_SILENCE_SECONDS: Final = 180.0
"""Time without a sign of life after which a reflector counts as dead."""
_NODES_SECONDS: Final = 3.0
"""Longest wait for the list of nodes at the start: jobs do without it."""
_LEASE_RATE: Final = 5.0
"""Requests about the Lease, 1/s: five times the rate of renewals, for repeated tries."""
_LEASE_BURST: Final = 10
LOOKS: Final = prometheus.Counter(
    "holdfast_operator_looks_total", "Looks at jobs, by outcome.", ["outcome"]
)
LOOK_SECONDS: Final = prometheus.Histogram(
    "holdfast_operator_look_seconds", "How long one look at a job takes."
)
LEADER: Final = prometheus.Gauge(
    "holdfast_operator_leader", "1 while this operator holds the Lease and looks after jobs."
)
JOBS: Final = prometheus.Gauge(
    "holdfast_operator_jobs", "ElasticJobs by the phase of their status.", ["phase"]
)
FAILED: Final = prometheus.Gauge(
    "holdfast_operator_failed_job",
    "1 for each ElasticJob that has failed and still exists, with the reason. Its master, and with "
    "it the job's own series, is gone by then.",
    ["namespace", "job", "reason"],
)
QUEUE_DEPTH: Final = prometheus.Gauge(
    "holdfast_operator_queue_depth", "Jobs that wait for a look of the operator, not for quota."
)


class _Stopped(Exception):  # noqa: N818 - a wish, not an error
    """A signal asked this process to end."""


class Operator:
    """One operator process."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._client = KubeClient(settings.api_rate, settings.api_burst)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._lease_client = KubeClient(_LEASE_RATE, _LEASE_BURST)
        self._election = Election(
            self._lease_client, settings.namespace, settings.lease, settings.identity
        )
        self._root_key = RootKey(self._client, settings.namespace)
        self._history = NodeHistory(self._client, settings, self._nodes_struck, self._known_nodes)
        self._signalled = asyncio.Event()
        self._leads = False
        self._reconciler: Reconciler | None = None
        self._watched = WatchedNamespaces(
            self._client, settings.watch_namespace.scopes, self._pod_changed
        )
        self._nodes = NodeReflector(self._client, self._node_noticed, self._node_shows)

    async def run(self) -> None:
        """Work until a signal; raises LeaseLostError and any error that ends an operator."""
        await self._client.open()
        await self._lease_client.open()
        port = self._settings.probe_port
        probes = await serve_probes(port, self._healthy, self._ready, self._jobs)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_signalled())
                group.create_task(self._work())
        except* _Stopped:
            _log.info("stopping")
            if self._leads:
                await self._history.give_up()
            await self._root_key.give_up()  # before another replica leads; needs the Lease
        finally:
            if self._reconciler is not None:
                await self._reconciler.close()
            if self._leads:
                await self._election.give_up()
            await probes.cleanup()
            await self._lease_client.close()
            await self._client.close()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled.set)

    async def _until_signalled(self) -> None:
        self._handle_signals()
        await self._signalled.wait()
        raise _Stopped

    async def _work(self) -> None:
        await self._watched.until_readable()
        await self._election.win()
        self._leads = True
        LEADER.set(1)
        root_key = await self._root_key.load()
        await self._root_key.warn_of_strangers(one.jobs for one in self._watched.each)
        await self._history.see_to_it()
        reporter = Reporter(self._client, self._settings.identity)
        reconciler = self._reconciler = Reconciler(
            self._settings,
            self._client,
            self._watched,
            reporter,
            root_key,
            self._queue.add,
            ClusterNodes(self._history, self._nodes.notice, self._nodes.silent),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._election.keep())
            group.create_task(self._root_key.keep())
            group.create_task(self._history.keep())
            if self._settings.node_notices is Switch.ON:
                group.create_task(self._nodes.run())
            group.create_task(reporter.run())
            group.create_task(reconciler.queues.run())
            for one in self._watched.each:
                group.create_task(self._serve(one, reconciler))
            for _ in range(self._settings.workers):
                group.create_task(self._look_for_ever(reconciler))

    def _pod_changed(self, pod: PodRecord, gone: bool) -> None:  # noqa: FBT001 - the reflector's way
        if self._reconciler is not None:
            self._reconciler.pod_changed(pod, gone)

    def _node_noticed(self, node: str) -> None:
        if self._reconciler is not None:
            self._reconciler.node_noticed(node)

    def _node_shows(self, strikes: Sequence[NodeStrike]) -> None:
        """Take what nodes show: a cordon only while a job is there, whose work it may disturb."""
        nodes = self._watched.nodes()
        self._history.add(
            one for one in strikes if one.cause == StrikeCause.CONDITION or one.host in nodes
        )

    def _nodes_struck(self, nodes: Collection[str]) -> None:
        if self._reconciler is not None:
            self._reconciler.nodes_struck(nodes)

    async def _first_look_at_nodes(self) -> None:
        """Wait a moment for the list of nodes: the first pods avoid those with a history, too."""
        if self._settings.node_notices is Switch.ON:
            with contextlib.suppress(TimeoutError):  # the right to it may be missing
                async with asyncio.timeout(_NODES_SECONDS):
                    await self._nodes.synced.wait()

    def _known_nodes(self) -> Collection[str]:
        """Return the cluster's nodes; without the right to read them, those that were heard of."""
        return self._nodes.names() or {
            *self._watched.nodes(),
            *(one.host for one in self._history.strikes()),
        }

    async def _serve(self, where: WatchedNamespace, reconciler: Reconciler) -> None:
        """Look after one namespace; of several, one that refuses is left until it can be read."""
        while True:
            await where.until_readable()
            async with asyncio.TaskGroup() as group:
                work = group.create_task(self._look_after(where, reconciler))
                if len(self._watched.each) > 1:  # else the error ends this process, as any other
                    await where.until_refused()
                    work.cancel()
            reconciler.leave(where.name)

    async def _look_after(self, where: WatchedNamespace, reconciler: Reconciler) -> None:
        where.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(where.pods.run())
            await where.pods.synced.wait()
            await reconciler.queues.first_look(where.name)
            await self._first_look_at_nodes()
            group.create_task(self._watch(where, reconciler))

    async def _watch(self, where: WatchedNamespace, reconciler: Reconciler) -> None:
        began = asyncio.Event()
        watching = watch_jobs(where.name, reconciler.seen, began, where.listed)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(watching)
            await began.wait()
            self._handle_signals()  # kopf has replaced them
            await task
        raise RuntimeError("the watch of ElasticJobs has ended")

    async def _look_for_ever(self, reconciler: Reconciler) -> None:
        while True:
            key = await self._queue.take()
            QUEUE_DEPTH.set(self._queue.depth)
            with logs.about("/".join(key), functools.partial(reconciler.round, key)):
                await self._look(reconciler, key)

    async def _look(self, reconciler: Reconciler, key: Key) -> None:
        try:
            with LOOK_SECONDS.time():
                again = await reconciler.look(key)
        except KubeError as error:
            LOOKS.labels("refused").inc()
            wait = self._queue.failed(key)
            _log.warning("job %s: %s; again in %.1f s", key, error, wait)
        except Exception:  # noqa: BLE001 - one job must not stop the others
            LOOKS.labels("failed").inc()
            wait = self._queue.failed(key)
            _log.exception("job %s: a look failed; again in %.1f s", key, wait)
        else:
            LOOKS.labels("done").inc()
            self._queue.done(key)
            if again is None:
                self._queue.forget(key)
            else:
                self._queue.add_after(key, again)

    def _jobs(self) -> Iterable[SeenJob]:
        return self._reconciler.jobs() if self._reconciler is not None else ()

    def _healthy(self) -> bool:
        return self._watched.silent_s() < _SILENCE_SECONDS

    def _ready(self) -> bool:
        if not self._leads:
            return self._election.stands_by
        return self._watched.ready


def main() -> int:
    """Run an operator; return the exit code."""
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"holdfast-operator: {error}\n")
        return EXIT_USAGE
    logs.start(settings.log_level, sys.stderr)
    codes: list[int] = []
    try:
        asyncio.run(Operator(settings).run())
    except* LeaseLostError as lost:
        codes.append(EXIT_LEASE)
        _log.critical("%s", lost.exceptions)
    except* Exception:  # noqa: BLE001 - the log has it, and the exit code
        codes.append(EXIT_FAILED)
        _log.exception("the operator ends")
    return codes[0] if codes else 0


async def serve_probes(
    port: int,
    healthy: Callable[[], bool],
    ready: Callable[[], bool],
    jobs: Callable[[], Iterable[SeenJob]] = tuple,
) -> web.AppRunner:
    """Serve the endpoints on every address; the caller cleans the runner up.

    jobs: Returns each job as its status shows it.
    """

    async def health(_: web.Request) -> web.Response:
        return _answer(good=healthy())

    async def readiness(_: web.Request) -> web.Response:
        return _answer(good=ready())

    async def metrics(_: web.Request) -> web.Response:
        _show(list(jobs()))
        text = prometheus.generate_latest()
        return web.Response(body=text, headers={"Content-Type": prometheus.CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/healthz", health)
    application.router.add_get("/readyz", readiness)
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


def _show(jobs: Sequence[SeenJob]) -> None:
    """Set the gauges that a scrape reads anew."""
    JOBS.clear()
    FAILED.clear()
    for phase, count in collections.Counter(one.phase for one in jobs).items():
        JOBS.labels(phase).set(count)
    for one in jobs:
        if one.reason:
            FAILED.labels(*one.key, one.reason).set(1)


def _answer(*, good: bool) -> web.Response:
    return web.Response(status=200 if good else 503, text="ok\n" if good else "no\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
