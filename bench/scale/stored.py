"""Writes many jobs and their pods straight into etcd, as copies of one job that an operator made.

An operator that starts then takes them over. So the memory and the CPU of 30,000 pods are measured
where an API server with a share of two cores could not have made them in an hour.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import aiohttp

from bench.scale.kubelets import address
from bench.scale.stage import JOBS, NAMESPACE, ScaleStage
from holdfast_wire import keys

SAMPLE: Final = "sample-of-all"
_AT_ONCE: Final = 16
_FIRST: Final = 100
"""Number of the first copy's pods: addresses below are the sample's."""
_KINDS: Final = (
    ("/api/v1", "services", "services/specs"),
    ("/api/v1", "secrets", "secrets"),
    ("/api/v1", "pods", "pods"),
    ("/apis/apps/v1", "controllerrevisions", "controllerrevisions"),
)
"""API, resource, and the resource's folder in etcd."""
Put = tuple[str, str]


async def store(stage: ScaleStage, jobs: int) -> int:
    """Store so many copies of the sample, which runs; return the number of objects."""
    sample = await _read(stage)
    copies = _copies(sample, jobs, stage.kubelets.nodes)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{stage.plane.ports.etcd}") as session:
        counts = await asyncio.gather(*(_write(session, copies) for _ in range(_AT_ONCE)))
    return sum(counts)


async def _write(session: aiohttp.ClientSession, puts: Iterator[Put]) -> int:
    """Write what is left; return the number of objects.

    One in a request: objects of one transaction have one version, and a watch that goes on from
    there leaves some of them out.
    """
    count = 0
    for key, text in puts:
        body = {"key": _b64(key), "value": _b64(text)}
        async with session.post("/v3/kv/put", json=body) as answer:
            answer.raise_for_status()
        count += 1
    return count


async def _read(stage: ScaleStage) -> dict[str, list[dict[str, Any]]]:
    """Read the sample's objects, by their folder in etcd."""
    job = await stage.client.call("GET", f"{JOBS}/{SAMPLE}")
    found = {"holdfast.dev/elasticjobs": [job]}
    for api, resource, folder in _KINDS:
        chosen = f"labelSelector={keys.LABEL_JOB}%3D{SAMPLE}"
        listed = await stage.client.call("GET", f"{api}/namespaces/{NAMESPACE}/{resource}?{chosen}")
        kind = str(listed["kind"]).removesuffix("List")
        found[folder] = [
            {"apiVersion": listed["apiVersion"], "kind": kind, **one} for one in listed["items"]
        ]
    return found


def _copies(sample: Mapping[str, list[dict[str, Any]]], jobs: int, nodes: int) -> Iterator[Put]:
    (job,) = sample["holdfast.dev/elasticjobs"]
    place = _FIRST
    for number in range(jobs):
        name, uid = f"job-{number}", str(uuid.uuid4())
        for folder, objects in sample.items():
            for one in objects:
                place += folder == "pods"
                body = _fresh(one, folder, place, nodes)
                text = json.dumps(body).replace(SAMPLE, name)
                text = text.replace(job["metadata"]["uid"], uid)
                key = one["metadata"]["name"].replace(SAMPLE, name)
                yield f"/registry/{folder}/{NAMESPACE}/{key}", text


def _fresh(one: Mapping[str, Any], folder: str, place: int, nodes: int) -> dict[str, Any]:
    """Return a copy with what no two objects share."""
    metadata = {**one["metadata"]}
    metadata.pop("resourceVersion")
    body = {**one, "metadata": metadata}
    if folder != "holdfast.dev/elasticjobs":
        metadata["uid"] = str(uuid.uuid4())
    if folder == "pods":
        body["spec"] = {**one["spec"], "nodeName": f"n{place % nodes}"}
        at = address(place)
        body["status"] = {**one["status"], "podIP": at, "podIPs": [{"ip": at}]}
    if folder == "services/specs":  # an address would have to be given out by the API server
        body["spec"] = {**one["spec"], "clusterIP": "None", "clusterIPs": ["None"]}
    return body


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
