"""A job that asks for what this version lacks, or uses old names, under the real reconciler."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_operator.apply import Applier
from holdfast_operator.events.news import NewsItem
from holdfast_operator.events.recorder import Reporter
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, KubeError, UnreachableError
from holdfast_operator.kube.reflector import PodReflector
from holdfast_operator.owned_resources import OwnedResources
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.pods import MASTER_SLOT
from holdfast_operator.pods.names import Owner
from holdfast_operator.reconcile import MANAGED_BY, Reconciler
from holdfast_operator.settings import OperatorSettings
from jobs.job_files import job, read

KEY = ("team", "t")


class StatusOnly(KubeClient):
    """An API server that takes nothing but a status, and knows what it was asked."""

    def __init__(self) -> None:
        super().__init__(1000.0, 1000)
        self.written: list[dict[str, Any]] = []

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Take a status, and say how old it is."""
        if path == "/version":
            return {"major": "1", "minor": "36"}
        if "/status?" not in path:
            raise UnreachableError(f"{method} {path}")
        self.written.append(body["status"])
        return _object(job(), **body["status"])


class Told(Reporter):
    """Keeps what it was told."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client, "me")
        self.happened: list[NewsItem] = []

    def report(self, owner: Owner, news: Iterable[NewsItem]) -> None:
        """Take note."""
        self.happened += news


def _reconciler() -> tuple[Reconciler, StatusOnly, Told]:
    server = StatusOnly()
    told = Told(server)
    settings = OperatorSettings(namespace="ns", identity="me", image="i")
    pods = PodReflector(server, "", lambda *_: None)
    return Reconciler(settings, server, pods, told, bytes(32), lambda _: None), server, told


def _object(body: dict[str, Any], **status: Any) -> dict[str, Any]:
    """The object as the API server has it, with its defaults."""
    metadata = {"name": "t", "namespace": "team", "uid": "u-1", "generation": 1}
    metadata["resourceVersion"] = "1"
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {**read(body).body, "metadata": metadata, "status": status}


async def test_a_job_that_asks_for_what_is_not_there_fails_before_anything_is_made() -> None:
    """The condition names each field, its value and the remedy; nothing else is written."""
    reconciler, server, told = _reconciler()
    body = _object(job())
    body["spec"]["elasticPolicy"]["scaler"] = "Master"
    body["spec"]["checkpoint"]["memory"]["copies"] = 3
    reconciler.seen(KEY, body, gone=False)
    await reconciler.look(KEY)
    (status,) = server.written
    (failed,) = (one for one in status["conditions"] if one["type"] == "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "NotSupported")
    assert "spec.checkpoint.memory.copies: 3 asks for copies of checkpoints" in failed["message"]
    assert 'spec.elasticPolicy.scaler: "Master" asks for a master' in failed["message"]
    assert "write External or leave it out" in failed["message"]
    assert status["phase"] == "Failed"
    assert "completionTime" in status
    assert [one.reason for one in told.happened] == ["NotSupported"]
    await reconciler.close()


async def test_a_job_that_asks_for_nothing_but_defaults_goes_on() -> None:
    """Its next step is to have the API server check its pods."""
    reconciler, server, told = _reconciler()
    reconciler.seen(KEY, _object(job()), gone=False)
    with pytest.raises(KubeError, match=r"/pods\?dryRun"):
        await reconciler.look(KEY)
    assert (server.written, told.happened) == ([], [])
    await reconciler.close()


async def test_a_job_that_has_pods_is_told_and_goes_on() -> None:
    """An edit, or another version of the operator, ends no training; it is told once."""
    reconciler, server, told = _reconciler()
    body = _object(job(), templateRevision="t-1")
    body["spec"]["checkpoint"]["onSuspend"] = False
    reconciler.seen(KEY, body, gone=False)
    for _ in range(2):
        with pytest.raises(KubeError, match="controllerrevisions"):
            await reconciler.look(KEY)
    (one,) = told.happened
    assert (one.reason, one.warning) == ("NotSupported", True)
    assert one.text.startswith("ignored: spec.checkpoint.onSuspend: false asks for suspending")
    assert server.written == []
    await reconciler.close()


@pytest.mark.parametrize("status", [{}, {"templateRevision": "t-1"}], ids=["new", "running"])
async def test_a_job_with_an_old_name_of_a_field_is_told_once(status: dict[str, Any]) -> None:
    """The event names the field and the remedy; looks that follow do not repeat it."""
    reconciler, server, told = _reconciler()
    reconciler.seen(KEY, _object(job(localSGD={"replicaNodes": 2}), **status), gone=False)
    for _ in range(2):
        with pytest.raises(KubeError):
            await reconciler.look(KEY)
    (one,) = told.happened
    assert (one.reason, one.warning) == ("FieldDeprecated", True)
    assert one.text.startswith("spec.localSGD.replicaNodes: 2 is deprecated and taken as ")
    assert "write it there, and delete spec.localSGD" in one.text
    assert server.written == []
    await reconciler.close()


@pytest.mark.parametrize("managed_by", [MANAGED_BY, "kueue.x-k8s.io/multikueue"])
async def test_a_job_of_a_left_namespace_that_was_not_looked_at_is_forgotten(
    managed_by: str,
) -> None:
    """It was still queued, or another controller's: it would count for ever, or be tried."""
    reconciler, server, _ = _reconciler()
    body = _object(job())
    body["spec"]["managedBy"] = managed_by
    reconciler.seen(KEY, body, gone=False)
    reconciler.leave("elsewhere")
    assert [one.key for one in reconciler.jobs()] == [KEY]
    reconciler.leave(KEY[0])
    assert reconciler.jobs() == []
    assert await reconciler.look(KEY) is None
    assert server.written == []


async def _why_refused(server: KubeClient) -> str:
    """Have a server refuse the pod of a job's master; return the text that the job keeps of it."""
    reconciler, _, _ = _reconciler()
    settings = OperatorSettings(namespace="ns", identity="me", image="i")
    applier = Applier(server, OwnedResources(server, 1.0), settings)
    state = reconciler._keep(_object(job()))
    action = CreatePod(slot=MASTER_SLOT, incarnation=0, name="t-master-0-0", reason="a test")
    assert await applier.create(state, (action,)) == {"master"}
    await reconciler.close()
    return state.refused[MASTER_SLOT].text


class Quota(KubeClient):
    """An API server with a quota on limits that a pod does not name."""

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Refuse pods; take notes in the status."""
        if method == "POST":
            text = "failed quota: all: must specify limits.cpu for: master"
            raise ApiRefusedError(f"POST {path}", 403, "Forbidden", text)
        return _object(job(), **(body or {}).get("status", {}))


async def test_a_refused_master_of_the_operators_own_names_what_can_be_changed() -> None:
    """The job's person cannot see that pod's template: the condition says whose it is."""
    text = await _why_refused(Quota(1000.0, 1000))
    assert "must specify limits.cpu" in text
    assert "`master` among the chart's values" in text


class OlderCrd(KubeClient):
    """An API server whose CRD lacks a field: it takes a write of it, and keeps nothing."""

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Return the job as it was, whatever is written."""
        assert method != "POST", "nothing may be made"
        return _object(job())


async def test_no_master_is_made_where_its_epoch_would_be_forgotten() -> None:
    """A second master with the first one's epoch would be taken for it: the older CRD is named."""
    text = await _why_refused(OlderCrd(1000.0, 1000))
    assert "drops status.masterPods" in text
    assert "the CRD elasticjobs.holdfast.dev is older than this operator" in text


class LacksFields(KubeClient):
    """An API server whose CRD lacks fields of the status: an apply with one is refused."""

    def __init__(self, *lacking: str) -> None:
        super().__init__(1000.0, 1000)
        self.lacking = lacking
        self.asked: list[dict[str, Any]] = []

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Refuse a status in the API server's own words; keep every one."""
        self.asked.append(body["status"])
        named = [
            one for one in self.lacking if f"'{one.rpartition('.')[2]}'" in str(body["status"])
        ]
        if named:
            words = "".join(f"\n  .status.{one}: field not declared in schema" for one in named)
            raise ApiRefusedError(f"{method} {path}", 500, "InternalError", f"errors:{words}")
        return _object(job(), **body["status"])


async def test_a_status_is_written_without_what_an_older_crd_lacks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest does not wait; each field is named once, and tried again when a while is over."""
    server = LacksFields("fresh", 'roles[name="worker"].lag')
    settings = OperatorSettings(namespace="ns", identity="me", image="i")
    applier = Applier(server, OwnedResources(server, 1.0), settings)
    reconciler, _, _ = _reconciler()
    state = reconciler._keep(_object(job()))
    status = {"phase": "Running", "fresh": 1, "roles": [{"name": "worker", "lag": 3}]}
    for _ in range(2):
        await applier.write_status(state, status)
    kept = {"phase": "Running", "roles": [{"name": "worker"}]}
    assert server.asked == [status, kept, kept]
    assert state.status.fields == status, "nothing is written again for it"
    later = time.monotonic() + settings.resync_s
    clock = SimpleNamespace(monotonic=lambda: later)  # not the loop's
    monkeypatch.setattr("holdfast_operator.apply.time", clock)
    server.lacking = ()
    await applier.write_status(state, status)
    assert server.asked[3:] == [status], "the CRD is a newer one now"
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "drops status.fresh, status.roles.lag: the CRD" in said
    assert "is older than this operator" in said
    await reconciler.close()


async def test_a_refusal_of_a_status_for_another_reason_is_passed_on() -> None:
    """Also one that names the same field again: no loop."""

    class Broken(LacksFields):
        """Names a field that is not there."""

        async def call(self, method: str, path: str, body: Any = None, *_: Any, **__: Any) -> Any:
            """Refuse everything alike."""
            self.asked.append(body["status"])
            text = ".status.fresh: field not declared in schema"
            raise ApiRefusedError(f"{method} {path}", 500, "InternalError", text)

    server = Broken()
    settings = OperatorSettings(namespace="ns", identity="me", image="i")
    applier = Applier(server, OwnedResources(server, 1.0), settings)
    reconciler, _, _ = _reconciler()
    with pytest.raises(ApiRefusedError):
        await applier.write_status(reconciler._keep(_object(job())), {"fresh": 1})
    assert len(server.asked) == 2
    await reconciler.close()


async def test_the_status_of_a_job_that_is_over_is_written_once() -> None:
    """And never with the notes that have requests of their own: a late one would take them back."""
    reconciler, server, _ = _reconciler()
    over = {"completionTime": "2026-01-01T01:00:00Z", "phase": "Succeeded", "conditions": []}
    body = _object(job(), **over, masterPods=2, templateRevision="t-1")
    reconciler.seen(KEY, body, gone=False)
    for _ in range(3):
        await reconciler.look(KEY)
    (status,) = server.written
    assert status["phase"] == "Succeeded"
    assert not {"masterPods", "templateRevision"} & set(status)
    await reconciler.close()
