"""Pods as processes: starts and ends those of the master and the agents, and waits for them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from holdfast_cli.errors import MasterUnreachableError
from holdfast_cli.job_directory import Endpoint, JobHome, write_json
from holdfast_cli.runner import processes, remote
from holdfast_cli.runner.certificates import LocalIdentities
from holdfast_cli.runner.fd_store import FdStores
from holdfast_cli.runner.hosts import Hosts
from holdfast_cli.runner.local_job import LocalJob, LocalPod, now
from holdfast_cli.runner.pod_logs import last_line
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.pods import Role
from holdfast_operator.pods.environment import PodIdentity
from holdfast_operator.pods.process import build_process
from holdfast_wire import keys, loopback

_log = logging.getLogger(__name__)
_MASTER_GRACE_SECONDS = 5.0
_START_SECONDS = 30.0
"""Deadline of a start, s: import of grpc and first handshake on a busy laptop; usually < 1 s."""
_LINGER_SECONDS = 3600.0
"""Time for which a master serves after the job, s; the runner ends it earlier, after the
summary."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Additions of a runner's caller to the pods."""

    route: Callable[[JobHome, int], str] | None = None
    """Returns a node's address of the master; None: the master's own address."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """More environment for every pod except the master's."""
    metrics_port: int | None = None
    """Port of the master's metrics on this machine; None: none are served."""
    hosts: Hosts | None = None
    """Other hosts, on which workers run; None: they run on this machine."""

    @property
    def address(self) -> str:
        """Address of this machine, as its workers reach it."""
        return loopback.address() if self.hosts is None else self.hosts.address


class MasterProcess:
    """One job's master. `start` again makes a successor with the next epoch."""

    def __init__(self, home: JobHome, job: LocalJob, surroundings: Surroundings) -> None:
        self._home = home
        self._job = job
        self._surroundings = surroundings
        self._running: processes.Running | None = None
        self._port = 0
        """Port of every successor: agents and users look for the master there."""

    @property
    def running(self) -> processes.Running:
        """Process of the master."""
        if self._running is None:
            raise MasterUnreachableError(f"the master of {self._job.job.name} was not started")
        return self._running

    async def start(self) -> Endpoint:
        """Start a master with a new epoch; return its endpoint.

        Raises:
            MasterUnreachableError: It ended or did not serve in time; the text names its log.
        """
        epoch = self._next_epoch()
        config = self._write_config(epoch)
        self._home.endpoint_file.unlink(missing_ok=True)
        log = self._home.logs / "master.log"
        self._running = await processes.start(
            processes.Command(
                argv=[sys.executable, "-m", "holdfast_master.main", "--config", config],
                env=dict(os.environ),
                cwd=self._home.path,
                log=log,
            )
        )
        await processes.wait_until(self._settled, _START_SECONDS)
        endpoint = self._home.endpoint()
        if endpoint is None:
            await self._running.end(0)
            text = await asyncio.to_thread(log.read_text, errors="replace")
            raise MasterUnreachableError(
                f"the master did not start to serve; the end of {log}:\n{text[-2000:].rstrip()}"
            )
        self._port = endpoint.port
        return endpoint

    def _settled(self) -> bool:
        return self._home.endpoint() is not None or self.running.exit_code is not None

    def _next_epoch(self) -> int:
        # No other process starts masters of this job, so a file is enough.
        file = self._home.path / "epoch"
        epoch = int(file.read_text()) + 1 if file.exists() else 1
        write_json(file, epoch)
        return epoch

    def _write_config(self, epoch: int) -> str:
        file = self._home.path / f"master-{epoch}.json"
        config = {
            "job_name": self._job.job.name,
            "job_uid": self._job.uid,
            "epoch": epoch,
            "incarnation": secrets.token_hex(8),
            "tls_dir": str(self._home.tls(keys.ROLE_MASTER)),
            "bind_host": loopback.bracketed(self._surroundings.address),
            "port": self._port,
            "endpoint_file": str(self._home.endpoint_file),
            "journal_dir": str(self._home.journal),
            "exit_when_finished": _LINGER_SECONDS,
            "metrics_port": self._surroundings.metrics_port,
            "traces": os.environ.get("OTEL_TRACES_EXPORTER", "none").replace("none", ""),
            "die_with_parent": True,
            "parent_pid": os.getpid(),
        }
        write_json(file, config)
        return str(file)


class PodProcesses:
    """Processes of one job. Calls `changed(name)` when one of them has ended."""

    def __init__(
        self,
        job: LocalJob,
        home: JobHome,
        identities: LocalIdentities,
        changed: Callable[[str], None],
        surroundings: Surroundings,
    ) -> None:
        self._job = job
        self._home = home
        self._identities = identities
        self._changed = changed
        self._surroundings = surroundings
        self._master = MasterProcess(home, job, surroundings)
        self._stores = FdStores()
        self._failure = ""
        """Reason why the newest process could not be started, for people; empty: it was started."""
        self._running: dict[str, processes.Running] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._host_failures: dict[str, float] = {}
        """Time of the newest failure of a worker on each host, s."""

    async def create(self, action: CreatePod) -> None:
        """Start the process of a pod. An existing one of that name is a success."""
        is_worker = action.slot.role is not Role.MASTER
        if self._job.find(action.name) is not None:
            return
        if is_worker and self._home.endpoint() is None:
            return  # Without a master's address an agent would start a job of its own.
        name, slot, incarnation = action.name, action.slot, action.incarnation
        pod = LocalPod(slot=slot, incarnation=incarnation, name=name, created_at=now())
        if is_worker and self._surroundings.hosts is not None:
            taken = [other.host for other in self._job.pods if other.exit_code is None]
            hosts = self._surroundings.hosts
            pod.host = hosts.choose(taken, action.avoid_nodes, self._host_failures)
        self._job.add(pod)
        try:
            running = await (self._start_worker(pod) if is_worker else self._start_master(pod))
        except OSError as error:
            # A full disk, or too many processes: the next plan asks again, as in a cluster.
            self._job.remove(pod.name)
            self._report_failure(f"{pod.name} cannot be started now ({error}); tried again")
            return
        self._report_failure("")
        self._running[pod.name] = running
        self._own(self._wait(pod, running))
        self._changed(pod.name)

    def _report_failure(self, text: str) -> None:
        if text and text != self._failure:
            _log.error("%s", text)
        self._failure = text

    def delete(self, name: str, grace_s: float) -> None:
        """Begin to end the process of a pod."""
        pod, running = self._job.find(name), self._running.get(name)
        if pod is None or pod.wanted_end:
            return
        if running is None or pod.exit_code is not None:
            self._job.remove(name)
            if pod.slot.role is Role.WORKER:
                self._stores.ended(pod.slot.index, name, keep=False)
            return
        pod.wanted_end = True
        self._changed(name)
        self._own(running.end(grace_s))

    async def end_all(self) -> None:
        """End every process: agents at once (they had their grace), then the master."""
        masters = {pod.name for pod in self._job.living(Role.MASTER)}
        others = [running for name, running in self._running.items() if name not in masters]
        await asyncio.gather(*(running.end(0) for running in others))
        await asyncio.gather(*(self._running[name].end(_MASTER_GRACE_SECONDS) for name in masters))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stores.close()

    async def _start_master(self, pod: LocalPod) -> processes.Running:
        try:
            endpoint = await self._master.start()
            self._job.master = self._job.master.started(endpoint.epoch)
            pod.ready = True
        except MasterUnreachableError as error:
            _log.error("%s", error)
        return self._master.running

    async def _start_worker(self, pod: LocalPod) -> processes.Running:
        slot = pod.slot
        is_agent = slot.role is Role.WORKER
        tls = await asyncio.to_thread(self._identities.write_agent, slot.index) if is_agent else ""
        built = build_process(
            self._job.job.spec,
            PodIdentity(
                job=self._job.job.name,
                namespace=self._job.job.namespace,
                job_uid=self._job.uid,
                slot=slot,
                pod_name=pod.name,
                pod_uid=pod.uid,
                master=self._master_address(slot.index),
                tls_dir=tls,
            ),
        )
        command = processes.Command(
            argv=built.argv,
            env=environment({**self._surroundings.variables, **built.env}),
            cwd=Path(built.working_dir or "."),
            log=self._log(pod.name),
        )
        if self._surroundings.hosts is not None:
            # What this machine keeps for a node's memory cannot be handed to another one.
            return await processes.start(self._launched(pod, command, self._surroundings.hosts))
        return await (self._start_agent(pod, command) if is_agent else processes.start(command))

    async def _start_agent(self, pod: LocalPod, command: processes.Command) -> processes.Running:
        """Start an agent with a connection to its node's descriptor store."""
        with self._stores.open(pod.slot.index, pod.name) as end:
            number = end.fileno()
            env = {**command.env, keys.ENV_ARENA_SOCKET: str(number)}
            return await processes.start(dataclasses.replace(command, env=env, passed=(number,)))

    def _launched(
        self, pod: LocalPod, command: processes.Command, hosts: Hosts
    ) -> processes.Command:
        """Return the command of the launcher that starts a worker on its host."""
        file = self._home.path / f"{pod.name}.json"
        own = {name: text for name, text in command.env.items() if os.environ.get(name) != text}
        cwd = str(command.cwd.absolute())
        write_json(file, {"cwd": cwd, "env": own, "argv": list(command.argv)})
        words = (sys.executable, remote.__file__, str(file))
        return dataclasses.replace(command, argv=hosts.command(pod.host, words))

    def _log(self, name: str) -> Path:
        return self._home.logs / f"{name}.log"

    def _master_address(self, node_rank: int) -> str:
        if self._surroundings.route is not None:
            return self._surroundings.route(self._home, node_rank)
        endpoint = self._home.endpoint()
        return endpoint.target if endpoint else ""

    async def _wait(self, pod: LocalPod, running: processes.Running) -> None:
        code = await running.wait()
        if code > 0:
            pod.said = await asyncio.to_thread(last_line, self._log(pod.name))
        if code != 0:
            self._host_failures[pod.host] = now()
        if pod.slot.role is Role.WORKER:
            keep = code != 0 and not pod.wanted_end
            self._stores.ended(pod.slot.index, pod.name, keep=keep)
        pod.exit_code = code
        pod.ended_at = now()
        pod.ready = False
        self._changed(pod.name)

    def _own(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a pod's process: this one's, with `given` laid over it."""
    # `holdfast-run` must be found even if the environment of this Python is not active.
    scripts = str(Path(sys.executable).parent)
    path = f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, **given}
