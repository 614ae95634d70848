"""The life of one pod: its namespaces, volumes and containers, its status, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import signal
import subprocess
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from cluster.kubelet import probes
from cluster.kubelet.aftermath import settle
from cluster.kubelet.client import CONFLICT, MERGE, NOT_FOUND, ApiError, Client
from cluster.kubelet.container import Container, Mount, Setting
from cluster.kubelet.dns import DOMAIN
from cluster.kubelet.material import Material, MaterialError, mount_memory
from cluster.kubelet.network import DNS_ADDRESS, Network
from cluster.kubelet.refusals import refused_user
from cluster.kubelet.spaces import Space
from cluster.kubelet.status import PodLook, report, unix

_log = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 0.3
_REFRESH_SECONDS: Final = 1.0
_DEFAULT_GRACE_SECONDS: Final = 30
_SHARED_MEMORY: Final = "64Mi"
"""Of /dev/shm, as containerd makes it."""


class Host(Protocol):
    """A pod's view of the node that it is on."""

    name: str
    address: str
    client: Client
    network: Network
    folder: Path
    path: str
    """PATH of every container: what an image would bring."""
    refused_images: set[str]
    start_delay_s: float
    stuck: bool
    """Pods that are to go stay Terminating."""
    silent: bool
    """Nothing is reported any more."""


class Pod:
    """One pod on one node."""

    def __init__(self, host: Host, manifest: Mapping[str, Any]) -> None:
        """Begin its life at once."""
        self.manifest = manifest
        self.space: Space | None = None
        metadata = manifest["metadata"]
        self.namespace, self.name, self.uid = (
            str(metadata[key]) for key in ("namespace", "name", "uid")
        )
        self._host = host
        self._folder = host.folder / "pods" / self.uid
        self.logs = host.folder / "logs" / f"{self.namespace}_{self.name}_{self.uid}"
        began = manifest.get("status", {}).get("startTime")
        self._since = unix(began) if began else time.time()
        spec = manifest["spec"]
        self.inits = [Container(one, self._change) for one in spec.get("initContainers") or ()]
        self.containers = [Container(one, self._change) for one in spec["containers"]]
        for one in self.inits:
            one.state.sidecar = one.manifest.get("restartPolicy") == "Always"
        for one in self.containers if self.inits else ():
            one.state.waiting = "PodInitializing"
        self._sidecars: list[tuple[Container, asyncio.Task[None]]] = []
        self._over = settle(manifest, self.inits, self.containers, time.time())
        """It ran under an earlier kubelet, and nothing of it starts again."""
        self._material = Material(host.client, manifest, host.name, host.address)
        self._volumes: dict[str, tuple[Path, bool]] = {}
        self._failure: tuple[str, str] | None = None
        self._disrupted = False
        self._changed = asyncio.Event()
        self._deleted = asyncio.Event()
        self._reported: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._cleaning = False
        self._life = asyncio.create_task(self._live())

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL of the deletion that is under way."""
        metadata = self.manifest["metadata"]
        return float(metadata.get("deletionGracePeriodSeconds", _DEFAULT_GRACE_SECONDS))

    def take(self, manifest: Mapping[str, Any]) -> None:
        """Take in the newest object; what others say of its readiness is put right.

        The node controller writes `Ready: False` where a node was not heard of for a while.
        """
        self.manifest = manifest
        if self._reported and _is_ready(manifest["status"]) != _is_ready(self._reported):
            self._reported = {}
            self._change()

    def speak(self) -> None:
        """Report what happened while its node was silent."""
        self._change()

    def delete(self) -> None:
        """Begin its end, as its deletion timestamp wants."""
        self._deleted.set()

    def evict(self, message: str, *, disrupted: bool) -> None:
        """End it as a kubelet does that runs out of something, or has a pod out of its limits."""
        self._failure, self._disrupted = ("Evicted", message), disrupted
        self.signal(signal.SIGKILL)
        self._change()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process of every container."""
        for container in (*self.inits, *self.containers):
            container.stopping = True
            container.kill(number)

    def container(self, name: str) -> Container | None:
        """Return the container of that name."""
        found = (one for one in (*self.inits, *self.containers) if one.state.name == name)
        return next(found, None)

    @property
    def _security(self) -> Mapping[str, Any]:
        return self.manifest["spec"].get("securityContext") or {}

    @property
    def address(self) -> str:
        """Its IP; empty while it has none, or the node's."""
        return self._material.address if self.space is not None else ""

    async def vanish(self) -> None:
        """End every process, report nothing: its object is gone, or its node is."""
        if not self._cleaning:  # its object goes while it cleans up: that is to come to its end
            self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self) -> None:
        self._own(self._report_changes())
        try:
            running = asyncio.create_task(self._run())
            deleted = asyncio.create_task(self._deleted.wait())
            self._tasks += [running]
            await asyncio.wait({running, deleted}, return_when=asyncio.FIRST_COMPLETED)
            if running.done() and (error := running.exception()) is not None:
                _log.error("pod %s: %r", self.name, error, exc_info=error)
                self._failure = ("KubeletError", repr(error))
                self._change()
            await self._deleted.wait()
            await self._terminate(running)
            while self._host.stuck:  # noqa: ASYNC110 - a test sets it, from outside
                await asyncio.sleep(_RETRY_SECONDS)
            await self._report()
            await self._forget()
        finally:
            await self._clean()

    async def _run(self) -> None:
        if self._over:
            self._change()
            return
        await self._begin()
        policy = self.manifest["spec"].get("restartPolicy", "Always")
        init_policy = "Never" if policy == "Never" else "OnFailure"
        if await self._initialize(init_policy):
            left = [one for one in self.containers if not one.state.finished]
            await asyncio.gather(*(self._run_one(one, policy) for one in left))
        await self._end_sidecars()

    async def _initialize(self, policy: str) -> bool:
        """Run the init containers one after another; return whether the others may start."""
        for container in self.inits:
            if container.state.sidecar:
                task = asyncio.create_task(self._run_one(container, policy))
                self._tasks.append(task)
                self._sidecars.append((container, task))
                await self._until_started(container, task)
            else:
                await self._run_one(container, policy)
            if self._deleted.is_set() or not container.state.lets_others_start:
                return False
        return True

    async def _until_started(self, container: Container, task: asyncio.Task[None]) -> None:
        while not container.state.lets_others_start and not self._deleted.is_set():
            if task.done():
                task.result()
                return
            await asyncio.sleep(_RETRY_SECONDS / 3)

    async def _end_sidecars(self) -> None:
        """End what runs beside the others once those are done, the last that was started first."""
        given = self.manifest["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        for container, task in reversed(self._sidecars):
            container.stopping = True
            container.kill(signal.SIGTERM)
            if not (await asyncio.wait({task}, timeout=given))[0]:
                container.kill(signal.SIGKILL)
                await asyncio.wait({task})

    async def _begin(self) -> None:
        await asyncio.sleep(self._host.start_delay_s)
        self.logs.mkdir(parents=True, exist_ok=True)
        spec = self.manifest["spec"]
        hostname = (spec.get("hostname") or self.name)[:63]
        self.space = await Space.make(hostname)
        self._material.address = await self._host.network.attach(self.space)
        self._write_names(hostname)
        await self._again(self._make_volumes)
        self._own(self._refresh_volumes())

    def _write_names(self, hostname: str) -> None:
        subdomain, search = self.manifest["spec"].get("subdomain"), f"{self.namespace}.svc.{DOMAIN}"
        full = f"{hostname}.{subdomain}.{search} " if subdomain else ""
        self._folder.mkdir(parents=True, exist_ok=True)
        hosts = f"127.0.0.1 localhost\n{self._material.address} {full}{hostname}\n"
        (self._folder / "hosts").write_text(hosts)
        (self._folder / "resolv.conf").write_text(
            f"search {search} svc.{DOMAIN} {DOMAIN}\n"
            f"nameserver {DNS_ADDRESS}\noptions ndots:5 timeout:1\n"
        )

    async def _make_volumes(self) -> None:
        memory = self._folder / "shm"
        if not memory.exists():
            memory.mkdir()
            await asyncio.to_thread(mount_memory, memory, _SHARED_MEMORY)
        for volume in self.manifest["spec"].get("volumes") or ():
            folder = self._folder / "volumes" / str(volume["name"])
            self._volumes[volume["name"]] = await self._material.volume(volume, folder)

    async def _refresh_volumes(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            for volume in self.manifest["spec"].get("volumes") or ():
                if "secret" in volume or "configMap" in volume:
                    with contextlib.suppress(MaterialError, ApiError, aiohttp.ClientError):
                        await self._material.refresh(volume, self._volumes[volume["name"]][0])

    async def _again(self, work: Any) -> None:
        """Do something until what it needs is there, and say meanwhile what is missing."""
        while True:
            try:
                await work()
                return
            except (MaterialError, ApiError, aiohttp.ClientError, TimeoutError) as error:
                for container in self.containers:
                    container.state.waiting_message = str(error)
                self._change()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _run_one(self, container: Container, policy: str) -> None:
        container.state.waiting = "ContainerCreating"
        await self._pull(container)
        folder = self._folder / "containers" / container.state.name
        (folder / "root").mkdir(parents=True, exist_ok=True)
        environment: dict[str, str] = {}

        async def read() -> None:
            try:
                if why := refused_user(container.manifest, self._security):
                    raise MaterialError(why)
                environment.update(await self._material.environment(container.manifest))
            except MaterialError:
                container.state.waiting = "CreateContainerConfigError"
                raise

        await self._again(read)
        setting = Setting(
            folder=folder,
            log=self.logs / f"{container.state.name}.log",
            pause=self.space.pid if self.space else 0,
            mounts=self._mounts(container.manifest),
            environment=self._defaults() | environment,
            pod_security=self._security,
        )
        if self.space is not None:
            self._own(probes.watch(container, self.space, self._change))
        await container.run(setting, policy)

    async def _pull(self, container: Container) -> None:
        """Wait while the image is refused, as a kubelet does that cannot pull it."""
        state = container.state
        while state.image in self._host.refused_images:
            state.waiting = (
                "ImagePullBackOff" if state.waiting == "ErrImagePull" else "ErrImagePull"
            )
            state.waiting_message = f'failed to pull image "{state.image}": not found'
            self._change()
            await asyncio.sleep(_RETRY_SECONDS)

    def _defaults(self) -> dict[str, str]:
        return {
            "PATH": self._host.path,
            "HOME": "/tmp",  # noqa: S108 - the container's own
            "HOSTNAME": (self.manifest["spec"].get("hostname") or self.name)[:63],
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }

    def _mounts(self, container: Mapping[str, Any]) -> list[Mount]:
        mounts = [
            Mount(self._folder / "hosts", "/etc/hosts"),
            Mount(self._folder / "resolv.conf", "/etc/resolv.conf"),
            Mount(self._folder / "shm", "/dev/shm"),  # noqa: S108
        ]
        for one in container.get("volumeMounts") or ():
            source, read_only = self._volumes[one["name"]]
            place = source / one.get("subPath", "")
            mounts.append(Mount(place, one["mountPath"], one.get("readOnly", read_only)))
        return mounts

    async def _terminate(self, running: asyncio.Task[None]) -> None:
        """SIGTERM, the grace, SIGKILL; what runs beside the others goes after them."""
        for one in (*self.inits, *self.containers):
            one.stopping = True
            if not one.state.sidecar:
                one.kill(signal.SIGTERM)
        if not any(one.state.running for one in (*self.inits, *self.containers)):
            running.cancel()
        await asyncio.wait({running}, timeout=self.grace_s)
        self.signal(signal.SIGKILL)
        await asyncio.wait({running}, timeout=_RETRY_SECONDS * 3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def _forget(self) -> None:
        """Take the object away, as the last thing that a kubelet does with a pod."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self.uid},
        }
        while not self._host.silent:
            try:
                await self._host.client.call("DELETE", self._path(), body)
                return
            except ApiError as error:
                if error.code in {NOT_FOUND, CONFLICT}:
                    return
            except (aiohttp.ClientError, TimeoutError):
                _log.info("pod %s: the API server is away; trying again", self.name)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._report()

    async def _report(self) -> None:
        look = PodLook(
            conditions=self.manifest.get("status", {}).get("conditions") or (),
            host=self._host.address,
            address=self._material.address,
            since=self._since,
            inits=[one.state for one in self.inits],
            containers=[one.state for one in self.containers],
            now=time.time(),
            failure=self._failure,
            disrupted=self._disrupted,
        )
        status = report(look)
        if self._host.silent or json.dumps(status) == json.dumps(self._reported):
            return
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            await self._host.client.call("PATCH", f"{self._path()}/status", body, MERGE)
            self._reported = status
        except ApiError as error:
            if error.code not in {NOT_FOUND, CONFLICT}:
                _log.warning("pod %s: %s", self.name, error)
                self._later()
        except (aiohttp.ClientError, TimeoutError):
            self._later()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._change)

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def _change(self) -> None:
        self._changed.set()

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _clean(self) -> None:
        self._cleaning = True
        self.signal(signal.SIGKILL)
        await self._end_tasks()
        if self.space is not None:
            await self.space.close()
        await asyncio.to_thread(_remove, self._folder)

    async def _end_tasks(self) -> None:
        """Cancel them until all are over, and say which of them took a cancellation for itself."""
        left = {task for task in self._tasks if not task.done()}
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_RETRY_SECONDS * 10)
            for task in left:
                _log.warning("pod %s: cancelled, and goes on: %r", self.name, task)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("pod %s: %r", self.name, error)


def _is_ready(status: Mapping[str, Any]) -> bool:
    stated = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return stated.get("Ready") == "True"


def _remove(folder: Path) -> None:
    for place in (folder / "shm", *folder.glob("volumes/*")):
        if place.is_mount():
            subprocess.run(["umount", "-l", place], check=False)
    shutil.rmtree(folder, onerror=_left)


def _left(_: object, path: str, raised: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        _log.warning("left behind: %s: %s", path, raised[1])
