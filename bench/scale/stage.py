"""etcd, an API server, the stubs of kubelets and masters, and an operator, for one measurement."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from bench import ROOT
from bench.harness.launch import free_port
from bench.scale.gate import Gate
from bench.scale.kubelets import PODS_PER_NODE, Kubelets
from bench.scale.masters import Masters
from bench.scale.process import OperatorProcess
from cluster.control_plane import ControlPlane
from cluster.crd import install_crd
from cluster.kubelet.client import Client
from cluster.papers import write_kubeconfig
from holdfast_wire import keys

NAMESPACE: Final = "bench"
JOBS: Final = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/elasticjobs"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
MASTER_PORT: Final = 52051
_AT_ONCE: Final = 8
_READY_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1


class OperatorKind(enum.StrEnum):
    """The measured operator."""

    HOLDFAST = "holdfast"
    PLAIN = "plain kopf"


@dataclasses.dataclass
class ScaleStage:
    """One cluster."""

    plane: ControlPlane
    client: Client
    kubelets: Kubelets
    masters: Masters
    gate: Gate
    operator: OperatorProcess
    begin: Callable[[], OperatorProcess]
    """Starts another operator."""

    async def apply(self, jobs: int, workers: int, prefix: str = "job") -> None:
        """Make so many jobs, a few side by side."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def make(number: int) -> None:
            async with slots:
                await self.client.call("POST", JOBS, job(f"{prefix}-{number}", workers))

        await asyncio.gather(*map(make, range(jobs)))

    async def until(
        self, what: str, happens: Callable[[], bool], limit_s: float, *, ended: bool = False
    ) -> None:
        """Wait; `ended`: the operator has ended, and was to.

        Raises:
            TimeoutError: It did not happen in time.
            RuntimeError: The operator has ended.
        """
        deadline = time.monotonic() + limit_s
        while not happens():
            if not ended and not self.operator.alive:
                raise RuntimeError(f"the operator ended:\n{self.operator.last_words()}")
            if self.kubelets.fault is not None:
                raise self.kubelets.fault
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {limit_s:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)


def job(name: str, workers: int) -> dict[str, Any]:
    """Return an ElasticJob as a user writes it."""
    worker = {
        "name": "worker",
        "image": "registry.example/training:2026.11",
        "command": ["holdfast-run", "--nproc-per-node=8", "/app/train.py", "--config=/app/a.yaml"],
        "env": [{"name": f"SETTING_{one}", "value": "some value"} for one in range(8)],
        "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "512Gi", "cpu": "64"}},
    }
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "metadata": {"name": name},
        "spec": {
            "replicas": workers,
            "master": {"port": MASTER_PORT},
            "worker": {"template": {"spec": {"containers": [worker]}}},
        },
    }


@contextlib.asynccontextmanager
async def stage(system: OperatorKind, pods: int, **settings: str) -> AsyncIterator[ScaleStage]:
    """Begin with an idle cluster for so many pods; everything is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-scale-"))
    plane = ControlPlane(folder)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(plane.stop)
        await asyncio.to_thread(_start, plane)
        url = f"https://127.0.0.1:{plane.ports.api}"
        client = Client(url, plane.token, folder / "ca.crt")
        stack.push_async_callback(client.close)
        masters = Masters(client, MASTER_PORT)
        masters.serves = system is OperatorKind.HOLDFAST
        stack.push_async_callback(masters.stop)
        kubelets = Kubelets(client, masters.begins)
        await kubelets.register(pods // PODS_PER_NODE + 2)
        serving = asyncio.create_task(kubelets.run())
        stack.callback(serving.cancel)
        gate = Gate(plane.ports.api)
        port = await stack.enter_async_context(gate.serve())
        begin = functools.partial(start, system, plane, port, settings)
        ready = ScaleStage(plane, client, kubelets, masters, gate, begin(), begin)
        stack.callback(_end, ready)
        await until_ready(ready)
        yield ready


def _end(stage: ScaleStage) -> None:
    stage.operator.end()


async def until_ready(stage: ScaleStage) -> None:
    """Wait until the operator serves."""
    deadline = time.monotonic() + _READY_SECONDS
    while not await stage.operator.ready():
        if not stage.operator.alive or time.monotonic() > deadline:
            raise RuntimeError(f"no operator:\n{stage.operator.last_words()}")
        await asyncio.sleep(_POLL_SECONDS)


def start(
    system: OperatorKind, plane: ControlPlane, port: int, settings: dict[str, str]
) -> OperatorProcess:
    """Start an operator that reaches the API server at `port`."""
    kubeconfig = plane.folder / "operator-kubeconfig"
    write_kubeconfig(kubeconfig, plane.folder, port, plane.token)
    probes = free_port()
    environ = {"KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": str(kubeconfig)}
    if system is OperatorKind.PLAIN:
        argv = [sys.executable, "-m", "bench.scale.plain", str(probes)]
        environ["PYTHONPATH"] = str(ROOT)
        return OperatorProcess(argv, environ | settings, plane.folder, probes)
    ours = {
        "NAMESPACE": NAMESPACE,
        "IDENTITY": "bench",
        "IMAGE": "registry.example/holdfast:bench",
        "NODE_NOTICES": "on",
        "PROBE_PORT": str(probes),
    }
    environ |= {f"HOLDFAST_OPERATOR_{name}": value for name, value in ours.items()} | settings
    argv = [sys.executable, "-m", "holdfast_operator.main"]
    return OperatorProcess(argv, environ, plane.folder, probes)


def _start(plane: ControlPlane) -> None:
    """Start what keeps objects: nothing is scheduled, and nobody collects garbage."""
    plane.start_etcd()
    plane.start_api_server()
    install_crd(plane)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    for path, body in (
        ("/api/v1/namespaces", namespace),
        (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account),
    ):
        if not (said := plane.api.post(path, body)).ok:
            raise RuntimeError(said.message)
