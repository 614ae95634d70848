"""Requests about a job that has gone meanwhile, whose name another job has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from cluster.kubectl import Kubectl
from holdfast_operator.events.recorder import Reporter
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.reconcile import Reconciler
from holdfast_operator.settings import OperatorSettings
from jobs.job_files import job as job_file

pytestmark = [pytest.mark.kube, pytest.mark.timeout(120)]
_NAME: Final = "again"


@contextlib.asynccontextmanager
async def _reconciler(client: KubeClient, namespace: str) -> AsyncIterator[Reconciler]:
    """An operator's reconciler without a watch: it knows what it is shown."""
    settings = OperatorSettings(namespace=namespace, identity="me", image="i", status_period_s=0.0)
    pods = PodReflector(client, namespace, lambda *_: None)
    made = Reconciler(settings, client, pods, Reporter(client, "me"), bytes(32), lambda _: None)
    yield made
    await made.close()


def _made(kubectl: Kubectl, **spec: Any) -> dict[str, Any]:
    body = {**job_file(replicas=1, **spec), "metadata": {"name": _NAME}}
    kubectl.run("create", "-f", "-", stdin=body)
    return _found(kubectl)


def _found(kubectl: Kubectl) -> dict[str, Any]:
    found: dict[str, Any] = kubectl.json("get", "ej", _NAME)
    return found


def _masters(kubectl: Kubectl) -> list[str]:
    """Epochs of the masters that there are."""
    pods = kubectl.json("get", "pods", "-l", "holdfast.dev/role=master")["items"]
    env = [one for pod in pods for one in pod["spec"]["containers"][0]["env"]]
    return [one["value"] for one in env if one["name"] == "HOLDFAST_EPOCH"]


async def test_no_request_for_a_job_that_went_changes_the_next_one_of_its_name(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    """Neither its status nor an epoch: the old job's masters would get one a second time."""
    key = (namespace, _NAME)
    async with _reconciler(client, namespace) as killed:
        killed.seen(key, _made(kubectl), gone=False)
        await killed.look(key)
    assert _masters(kubectl) == ["1001"]
    old = _found(kubectl)
    kubectl.run("delete", "pods", "--all", "--force", "--grace-period=0")
    async with _reconciler(client, namespace) as next_one:
        next_one.seen(key, old, gone=False)
        kubectl.run("delete", "ej", _NAME)
        successor = _made(kubectl)
        assert await next_one.look(key) is None
    assert _masters(kubectl) == []
    assert _found(kubectl) == successor


async def test_a_job_that_somebody_edits_meanwhile_is_gone_on_with(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    """A write that meets a newer object is made again from that one."""
    key = (namespace, _NAME)
    async with _reconciler(client, namespace) as reconciler:
        reconciler.seen(key, _made(kubectl, suspend=True), gone=False)
        kubectl.run("label", "ej", _NAME, "edited=yes")
        wait = await reconciler.look(key)
        assert "status" not in _found(kubectl)
        assert wait is not None
        await asyncio.sleep(wait)
        await reconciler.look(key)
    assert _found(kubectl)["status"]["phase"] == "Suspended"
