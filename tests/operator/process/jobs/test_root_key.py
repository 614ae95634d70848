"""The Secret with the root key of all certificates, when people delete it or put another there."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Make, training
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.root_key import ROOT_SECRET, RootKey
from jobs.job_files import job as job_file

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]
_SECRET: Final = ("get", "secret", ROOT_SECRET)


def _stored(kubectl: Kubectl) -> bytes:
    return base64.b64decode(kubectl.json(*_SECRET)["data"]["root-key"])


def _put(kubectl: Kubectl, data: dict[str, str]) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": ROOT_SECRET}, "data": data}
    kubectl.run("create", "-f", "-", stdin=secret)


async def test_every_operator_of_a_namespace_has_the_same_key(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    """The first one makes it, for good."""
    first = await RootKey(client, namespace).load()
    assert await RootKey(client, namespace).load() == first == _stored(kubectl)
    assert kubectl.json(*_SECRET)["immutable"] is True


async def test_a_key_that_somebody_deletes_is_put_back(
    client: KubeClient, kubectl: Kubectl, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By the operator that runs, and by one that ends: its successor reads the same."""
    root = RootKey(client, namespace)
    key = await root.load()
    for leave in (root.see_to_it, root.give_up):
        kubectl.run("delete", "secret", ROOT_SECRET)
        await leave()
        assert await RootKey(client, namespace).load() == key
    assert caplog.text.count("was deleted and is put back") == 2


async def test_an_operator_that_never_led_puts_nothing_back(
    client: KubeClient, kubectl: Kubectl, namespace: str
) -> None:
    """A standby that is told to end has no key."""
    await RootKey(client, namespace).give_up()
    assert kubectl.try_run(*_SECRET).returncode != 0


@pytest.mark.parametrize(
    "data", [{"root-key": base64.b64encode(bytes(32)).decode()}, {"root-key": "eA=="}, {}]
)
async def test_another_key_is_told_once_and_left_alone(
    client: KubeClient,
    kubectl: Kubectl,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    data: dict[str, str],
) -> None:
    """Nobody's Secret is overwritten; deleted, as the log says, it is what it was."""
    root = RootKey(client, namespace)
    key = await root.load()
    kubectl.run("delete", "secret", ROOT_SECRET)
    _put(kubectl, data)
    await root.see_to_it()
    await root.see_to_it()
    assert caplog.text.count("holds another key than this operator works with") == 1
    assert kubectl.json(*_SECRET).get("data", {}) == data
    kubectl.run("delete", "secret", ROOT_SECRET)
    await root.see_to_it()
    assert _stored(kubectl) == key


@pytest.mark.parametrize("data", [{"root-key": "eA=="}, {"another": "eA=="}, {}])
async def test_a_secret_without_a_key_is_refused_with_the_remedy(
    client: KubeClient, kubectl: Kubectl, namespace: str, data: dict[str, str]
) -> None:
    """Rather than that certificates come from half a key."""
    _put(kubectl, data)
    with pytest.raises(ValueError, match="restore it from a backup"):
        await RootKey(client, namespace).load()


async def test_an_api_server_that_refuses_does_not_end_the_operator(
    client: KubeClient, kubectl: Kubectl, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and the next look tries again."""
    root = RootKey(client, namespace)
    await root.load()
    kubectl.run("delete", "namespace", namespace, "--wait=false")
    kubectl.try_run("delete", "secret", ROOT_SECRET)
    await root.see_to_it()
    assert "was not looked after" in caplog.text


async def test_a_new_key_under_jobs_that_run_is_told_with_their_names(
    plane: ControlPlane,
    client: KubeClient,
    kubectl: Kubectl,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names the jobs that run under the old key. Ended and new jobs are left out."""
    jobs = f"/apis/holdfast.dev/v1alpha1/namespaces/{namespace}/elasticjobs"
    states: dict[str, dict[str, Any]] = {
        "runs": {"masterPods": 1},
        "ended": {"masterPods": 1, "completionTime": "2026-01-01T00:00:00Z"},
        "new": {},
    }
    for name, status in states.items():
        kubectl.run("create", "-f", "-", stdin=job_file(name))
        answer = plane.api.merge(f"{jobs}/{name}/status", {"status": status})
        assert answer.ok, answer.message
    root = RootKey(client, namespace)
    await root.load()
    with caplog.at_level(logging.CRITICAL):
        await root.warn_of_strangers([jobs])
        again = RootKey(client, namespace)
        await again.load()
        await again.warn_of_strangers([jobs])
    (told,) = [one.getMessage() for one in caplog.records]
    assert told.count(f"{namespace}/") == 1
    assert "1 jobs run with certificates of the one before" in told
    assert f"cannot be reached: {namespace}/runs. Restore" in told


@needs_pods
def test_a_job_outlives_the_deletion_of_the_root_key(
    make_job: Make, release: Release, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Twice: found by the operator that runs, and put back by the one that just ends."""
    job = make_job("rooted")
    job.create(training(tmp_path, replicas=1))
    job.until_training(1)
    world, key = job.world, _stored(release.kubectl)
    release.kubectl.run("delete", "secret", ROOT_SECRET)
    job.until("its return", lambda: release.kubectl.try_run(*_SECRET).returncode == 0)
    assert _stored(release.kubectl) == key
    assert "was deleted and is put back" in release.operator_log()
    release.kubectl.run("delete", "secret", ROOT_SECRET)
    release.restart()
    job.until("its return", lambda: release.kubectl.try_run(*_SECRET).returncode == 0)
    assert _stored(release.kubectl) == key
    kubectl.run("delete", "secret", "rooted-worker-tls-0")  # a new one has to fit the old master
    kubectl.run("delete", "pod", "rooted-worker-0-0", "--wait=false")
    job.until("its successor's world", lambda: job.world["round"] > world["round"])
    job.until_training(1)
    assert job.world["epoch"] == world["epoch"]
    assert job.status["masterPods"] == 1
