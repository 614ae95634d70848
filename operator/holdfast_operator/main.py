"""`holdfast-operator`: looks after every ElasticJob of a cluster, until it is told to stop.

Exit codes: 0 after SIGTERM or SIGINT; 1 an error of ours, or a watch that ended; 2 a setting
cannot be used; 3 the Lease was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
import time
from typing import Final

from holdfast_operator import logs
from holdfast_operator.election import Election, LeaseLostError
from holdfast_operator.job_keeper import Key
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.failures import KubeError
from holdfast_operator.kube.pods import PodRecord
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.news.report import Reporter
from holdfast_operator.probing import LOOK_SECONDS, LOOKS, QUEUE_DEPTH, serve_probes
from holdfast_operator.reconcile import Reconciler
from holdfast_operator.root_key import RootKey
from holdfast_operator.settings import OperatorSettings, SettingsError, read_settings
from holdfast_operator.watching import watch_jobs
from holdfast_operator.work_queue import WorkQueue
from holdfast_wire import keys

_log = logging.getLogger(__name__)
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_LEASE: Final = 3
_SILENCE_S: Final = 180.0
"""A reflector that was not heard of for so long is dead, whatever it thinks."""
_RETRY_S: Final = 1.0
_LEASE_RATE: Final = 5.0
"""Requests about the Lease, 1/s: five times what a renewal takes, with its tries again."""
_LEASE_BURST: Final = 10


class _Stopped(Exception):  # noqa: N818 - a wish, not an error
    """Somebody wants this process to end."""


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
        self._signalled = asyncio.Event()
        self._leads = False
        self._reconciler: Reconciler | None = None
        self._pods = PodReflector(
            self._client,
            settings.watch_namespace,
            self._pod_changed,
        )

    async def run(self) -> None:
        """Work until a signal; raises LeaseLostError and what else ends an operator."""
        await self._client.open()
        await self._lease_client.open()
        probes = await serve_probes(self._settings.probe_port, self._healthy, self._ready)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_signalled())
                group.create_task(self._work())
        except* _Stopped:
            _log.info("stopping")
            await self._root_key.give_up()  # before another leads; one without its Lease may not
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
        await self._wait_for_the_crd()
        await self._election.win()
        self._leads = True
        root_key = await self._root_key.load()
        await self._root_key.warn_of_strangers(self._jobs_path())
        reporter = Reporter(self._client, self._settings.identity)
        reconciler = self._reconciler = Reconciler(
            self._settings, self._client, self._pods, reporter, root_key, self._queue.add
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._election.keep())
            group.create_task(self._root_key.keep())
            group.create_task(self._pods.run())
            group.create_task(reporter.run())
            await self._pods.synced.wait()
            group.create_task(self._watch(reconciler))
            for _ in range(self._settings.workers):
                group.create_task(self._look_for_ever(reconciler))

    def _pod_changed(self, pod: PodRecord, gone: bool) -> None:  # noqa: FBT001 - the reflector's way
        if self._reconciler is not None:
            self._reconciler.pod_changed(pod, gone)

    async def _watch(self, reconciler: Reconciler) -> None:
        began = asyncio.Event()
        watching = watch_jobs(self._settings.watch_namespace, reconciler.seen, began)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(watching)
            await began.wait()
            self._handle_signals()  # kopf has put its own in their place
            await task
        raise RuntimeError("the watch of ElasticJobs has ended")

    async def _wait_for_the_crd(self) -> None:
        """Without it kopf would warn once and never serve."""
        while True:
            try:
                await self._client.call("GET", f"{self._jobs_path()}?limit=1")
                return
            except KubeError as error:
                _log.warning("ElasticJobs cannot be listed yet: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _jobs_path(self) -> str:
        where = self._settings.watch_namespace
        return f"/apis/{keys.API_VERSION}{where and f'/namespaces/{where}'}/elasticjobs"

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

    def _healthy(self) -> bool:
        if not self._pods.synced.is_set():
            return True  # a standby, or one that has just begun
        return time.monotonic() - self._pods.last_activity < _SILENCE_S

    def _ready(self) -> bool:
        return not self._leads or self._pods.synced.is_set()


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


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
