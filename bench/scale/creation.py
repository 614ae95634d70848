"""The pods of one large job: made by the operator, by a bare client of the same limits, by kubectl.

No kubelet serves them, so nothing else happens meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from bench.scale.stage import JOBS, NAMESPACE, PODS, ScaleStage, job
from cluster.tools import tools_folder
from holdfast_operator.kube.rate_limit import TokenBucket
from holdfast_operator.settings import OperatorSettings
from holdfast_wire import keys

Figures = dict[str, Any]
_LIMIT_SECONDS: Final = 600.0
_AT_ONCE: Final = 64
_LIMITS: Final = OperatorSettings(namespace="", identity="", image="")
"""The operator's defaults."""


async def compared(stage: ScaleStage, workers: int, number: int) -> Figures:
    """Have the three make as many pods, one after another."""
    stage.kubelets.serves = False
    ours = await _operator(stage, f"large-{number}", workers)
    pods = await _pods(stage, f"large-{number}")
    return {
        "pods": workers,
        "operator_s": round(ours, 2),
        "bare_s": round(await _bare(stage, [_copy(one, f"bare-{number}") for one in pods]), 2),
        "kubectl_s": round(
            await _kubectl(stage, [_copy(one, f"kube-{number}") for one in pods]), 2
        ),
    }


async def _operator(stage: ScaleStage, name: str, workers: int) -> float:
    made = stage.kubelets.made
    before, began = len(made), time.monotonic()
    await stage.client.call("POST", JOBS, job(name, workers))
    await stage.until("the pods", lambda: len(made) >= before + workers + 1, _LIMIT_SECONDS)
    return max(made.values()) - began


async def _bare(stage: ScaleStage, pods: list[dict[str, Any]]) -> float:
    bucket = TokenBucket(_LIMITS.api_rate, _LIMITS.api_burst, _LIMITS.api_burst, time.monotonic())
    slots = asyncio.Semaphore(_AT_ONCE)

    async def make(pod: dict[str, Any]) -> None:
        async with slots:
            await asyncio.sleep(bucket.take(time.monotonic()))
            await stage.client.call("POST", PODS, pod)

    began = time.monotonic()
    await asyncio.gather(*map(make, pods))
    return time.monotonic() - began


async def _kubectl(stage: ScaleStage, pods: list[dict[str, Any]]) -> float:
    file = stage.plane.folder / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    words = ("--kubeconfig", str(stage.plane.kubeconfig), "--namespace", NAMESPACE)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        str(tools_folder() / "kubectl"), *words, "create", "-f", str(file),
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait():
        raise RuntimeError("kubectl create failed")
    return time.monotonic() - began


async def _pods(stage: ScaleStage, name: str) -> list[dict[str, Any]]:
    chosen = f"labelSelector={keys.LABEL_JOB}%3D{name},{keys.LABEL_ROLE}%3Dworker"
    found: list[dict[str, Any]] = (await stage.client.call("GET", f"{PODS}?{chosen}"))["items"]
    return found


def _copy(pod: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the pod under another name, without a label that operator and kubelets look for."""
    metadata = pod["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != keys.LABEL_JOB}
    rank = metadata["labels"][keys.LABEL_INDEX]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{name}-{rank}", "namespace": NAMESPACE, "labels": labels},
        "spec": pod["spec"],
    }
