"""`python -m bench.scale.watch_events`: CPU of a pod's event in a storm, read at once and together.

A server sends events of pods that change in nothing that counts, one after another. The measured
process reads them as the operator's watch does, with and without its pause after a read, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from holdfast_operator.kube import client as kube
from holdfast_operator.pods.names import LABEL_INCARNATION
from holdfast_operator.pods.record import read_pod
from holdfast_wire import keys

_PODS: Final = 500
_TIME: Final = "2026-01-01T00:00:00Z"
_SILENCE_SECONDS: Final = 60.0


async def _compare(options: argparse.Namespace) -> None:
    """Print the CPU of an event both ways, and how many times as much one takes read at once."""
    found: dict[str, list[float]] = {"at once": [], "together": []}
    async with _served(options.events, options.pause) as port:
        for _ in range(options.rounds):
            for way, costs in found.items():
                costs.append(await asyncio.to_thread(_measured, port, options.events, way))
    for way, costs in found.items():
        spread = f"{min(costs):.0f}-{max(costs):.0f}"
        print(f"read {way:8}: {statistics.median(costs):.0f} us of CPU an event ({spread})")
    ratios = [one / other for one, other in zip(*found.values(), strict=True)]
    print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


def _measured(port: int, events: int, way: str) -> float:
    words = ("--watch", str(port), "--way", way, "--events", str(events))
    command = [sys.executable, "-m", "bench.scale.watch_events", *words]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


async def _watch(port: int, events: int, way: str) -> None:
    """Print the CPU of an event of one watch, us."""
    if way == "at once":

        async def leave_nothing(response: aiohttp.ClientResponse) -> None:
            """Read on."""

        kube._leave_unread = leave_nothing  # noqa: SLF001 - what is compared
    with tempfile.TemporaryDirectory() as folder:
        _write_kubeconfig(Path(folder) / "config", port)
        client = kube.KubeClient(100.0, 200)
        await client.open()
    before, read = time.process_time(), 0
    async for event in client.watch("/pods", _SILENCE_SECONDS):
        read += read_pod(event["object"]) is not None
    spent = time.process_time() - before
    await client.close()
    if read != events:
        raise RuntimeError(f"{read} of {events} events were read")
    print(spent / events * 1e6)


def _write_kubeconfig(file: Path, port: int) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "a", "user": {"token": "a"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    file.write_text(json.dumps(config))
    os.environ["KUBECONFIG"] = str(file)


@contextlib.asynccontextmanager
async def _served(events: int, pause: float) -> AsyncIterator[int]:
    """Serve a watch that has so many events, and yield its port."""
    lines = [f"{json.dumps(_event(number), separators=(',', ':'))}\n" for number in range(_PODS)]

    async def storm(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(events):
            await response.write(lines[number % _PODS].encode())
            await asyncio.sleep(pause)
        return response

    app = web.Application()
    app.router.add_get("/pods", storm)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


def _event(number: int) -> dict[str, Any]:
    """Return an event of a pod that is as large as a real one: 8 kB, a half of it for managers."""
    names = [f"HOLDFAST_VARIABLE_{one}" for one in range(25)]
    owned: dict[str, Any] = {
        f'k:{{"name":"{one}"}}': {".": {}, "f:name": {}, "f:value": {}} for one in names
    }
    container = {
        "name": "worker",
        "image": "registry.example/train:1",
        "command": ["holdfast-run", "--nproc-per-node=8", "train.py"],
        "env": [{"name": one, "value": f"a value of {one}"} for one in names],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    labels = {keys.LABEL_JOB: f"job{number % 50}", keys.LABEL_ROLE: "worker"}
    return {
        "type": "MODIFIED",
        "object": {
            "kind": "Pod",
            "metadata": {
                "name": f"pod{number}",
                "namespace": "default",
                "uid": f"{number:032}",
                "resourceVersion": f"{number}",
                "creationTimestamp": _TIME,
                "labels": labels | {keys.LABEL_INDEX: f"{number // 50}", LABEL_INCARNATION: "0"},
                "managedFields": [{"manager": one, "fieldsV1": owned} for one in ("a", "b")],
            },
            "spec": {"containers": [container], "restartPolicy": "Never", "nodeName": "n1"},
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "conditions": [{"type": one, "status": "True"} for one in kinds],
                "containerStatuses": [{"name": "worker", "state": {"running": {}}, "ready": True}],
            },
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=3000, help="of each round")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds between two events")
    parser.add_argument("--rounds", type=int, default=4, help="of each way")
    parser.add_argument("--watch", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    asyncio.run(_watch(given.watch, given.events, given.way) if given.watch else _compare(given))
