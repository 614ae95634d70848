"""Events of a job as `kubectl describe` and `kubectl events` show them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.control_plane import ControlPlane
from cluster.jobs import Make, container, manifest
from cluster.kubectl import Kubectl
from cluster.release import Release
from cluster.rights import needs_pods
from holdfast_operator.events.news import NewsItem
from holdfast_operator.events.recorder import CONTROLLER, Reporter
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.pods.names import Owner

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]


def _events(kubectl: Kubectl) -> list[dict[str, Any]]:
    found = kubectl.json("get", "events.events.k8s.io")["items"]
    return [one for one in found if one["reportingController"] == CONTROLLER]


def _told(number: int, text: str) -> NewsItem:
    at_us = 1_800_000_000_000_000 + number
    return NewsItem(reason="NodeLost", text=text, warning=True, at_us=at_us, sequence=number)


@pytest.fixture
def owner(kubectl: Kubectl, namespace: str) -> Owner:
    """A job that nobody looks after."""
    kubectl.run("create", "-f", "-", stdin=manifest())
    uid = kubectl.json("get", "ej", "job")["metadata"]["uid"]
    return Owner(name="job", namespace=namespace, uid=uid)


async def _report(*batches: list[NewsItem], owner: Owner) -> None:
    """Have one operator process tell each batch, one after the other."""
    client = KubeClient(100.0, 100)
    await client.open()
    reporter = Reporter(client, "holdfast-operator-0")
    for batch in batches:
        reporter.report(owner, batch)
        await reporter._write_all()
    await client.close()


async def test_news_become_events_that_count_their_repetitions(
    plane: ControlPlane, kubectl: Kubectl, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server takes them, kubectl shows them, and a repetition is a number on the first."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    long = "ü" * 2000
    await _report([_told(1, "a"), _told(2, long)], [_told(3, "a")], owner=owner)
    notes = {one["note"]: one for one in _events(kubectl)}
    assert set(notes) == {"a", "ü" * 512}
    assert notes["a"]["series"]["count"] == 2
    assert notes["a"]["regarding"]["kind"] == "ElasticJob"
    described = kubectl.run("describe", "ej", "job")
    assert "Warning  NodeLost" in described
    assert "x2 over" in described


async def test_an_operator_goes_on_where_its_predecessor_stopped(
    plane: ControlPlane, kubectl: Kubectl, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master tells its newest hundred again; nothing is doubled, nothing new is lost."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    first = [_told(number, f"node {number}") for number in range(5)]
    await _report(first, owner=owner)
    await _report([*first, _told(7, "node 7")], owner=owner)
    assert sorted(one["note"] for one in _events(kubectl)) == [
        *(f"node {number}" for number in range(5)),
        "node 7",
    ]


@needs_pods
def test_a_job_tells_its_life(
    plane: ControlPlane, release: Release, kubectl: Kubectl, make_job: Make
) -> None:
    """Events tell of the master's start and of a refused template. A new operator adds none."""
    make_job("short").create(manifest("sleep", "600", grace_s=1))
    wrong = manifest("sleep", "60")
    container(wrong)["image"] = ""
    make_job("wrong").create(wrong)

    def told(name: str) -> set[str]:
        return {one["reason"] for one in _events(kubectl) if one["regarding"]["name"] == name}

    plane.until("the refused template", lambda: "InvalidTemplate" in told("wrong"))
    wanted = {"MasterStarted", "OperatorConnected", "SpecAccepted"}
    plane.until(f"{wanted}, not {told('short')}", lambda: wanted <= told("short"))
    release.restart()
    plane.until("the next operator", lambda: "OperatorDisconnected" in told("short"))
    reasons = [one["reason"] for one in _events(kubectl)]
    assert [reasons.count(one) for one in ("MasterStarted", "InvalidTemplate")] == [1, 1]
