"""A job's NetworkPolicy, where another one has its name."""

from __future__ import annotations

import datetime as dt
import http
from typing import Any

import pytest

from holdfast_operator.credentials import JobCredentials
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, TakenError
from holdfast_operator.nodes.history import ClusterNodes, NodeHistory
from holdfast_operator.owned_resources import OwnedResources
from holdfast_operator.pods.names import Owner
from holdfast_operator.settings import OperatorSettings
from holdfast_operator.state.credentials import HeldCredentials
from holdfast_operator.state.job_state import JobState
from holdfast_operator.state.status import WrittenStatus
from jobs.job_files import job, read

_OWNER = Owner(name="t", namespace="team", uid="u-1")
_FOREIGN = {"kind": "NetworkPolicy", "metadata": {"name": "t-pods", "uid": "p-1"}, "spec": {}}


class Server(KubeClient):
    """An API server that keeps what is made, a NetworkPolicy among it if one was there before."""

    def __init__(self, policy: dict[str, Any] | None) -> None:
        super().__init__(1000.0, 1000)
        self.objects = {} if policy is None else {_OWNER.policy_path: policy}

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """Answer a request."""
        path = path.partition("?")[0]
        if method == "GET" and path not in self.objects:
            raise ApiRefusedError(f"GET {path}", http.HTTPStatus.NOT_FOUND, "NotFound", "")
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        if method in {"POST", "PATCH"}:
            self.objects[path] = body
        return self.objects[path]


def _state(revision: str) -> JobState:
    settings = OperatorSettings(namespace="holdfast", identity="me", image="i")
    found = read(job(replicas=2))
    body = {**found.body, "metadata": {"name": "t", "namespace": "team", "uid": "u-1"}}
    return JobState(
        owner=_OWNER,
        job=found,
        body=body,
        status=WrittenStatus({"templateRevision": revision} if revision else {}),
        credentials=HeldCredentials(JobCredentials(bytes(32), _OWNER, dt.timedelta(days=1))),
        pods_now=lambda _: [],
        nodes=ClusterNodes(NodeHistory(KubeClient(1.0, 1), settings)),
    )


@pytest.mark.parametrize("revision", ["", "t-1"])
async def test_a_job_has_its_policy_from_the_beginning_and_gets_it_back(revision: str) -> None:
    """It is the job's own, under the name that its pods have in common."""
    server, state = Server(None), _state(revision)
    owned = OwnedResources(server, 1.0, ())
    await owned.prepare(state)
    made = server.objects.pop(_OWNER.policy_path)
    assert made["metadata"]["name"] == "t-pods"
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == ["u-1"]
    state.credentials.checked_at = 1.0
    await owned.resync(state, 1000.0)
    assert server.objects[_OWNER.policy_path] == made


async def test_a_new_job_waits_while_its_policy_s_name_is_taken() -> None:
    """It would begin open to all; the error has the remedy, and nothing of it is made."""
    server, state = Server(_FOREIGN), _state("")
    with pytest.raises(TakenError, match="t-pods exists and is not this job's; delete it"):
        await OwnedResources(server, 1.0, ()).prepare(state)
    assert server.objects == {_OWNER.policy_path: _FOREIGN}


async def test_a_running_job_goes_on_beside_a_foreign_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It began before jobs had one. The foreign one stays; the log names it; the rest is made."""
    server, state = Server(_FOREIGN), _state("t-1")
    owned = OwnedResources(server, 1.0, ())
    await owned.prepare(state)
    state.credentials.checked_at = 1.0
    await owned.resync(state, 1000.0)
    assert server.objects[_OWNER.policy_path] is _FOREIGN
    assert len(server.objects) > 1
    said = [one.getMessage() for one in caplog.records if "NetworkPolicy" in one.getMessage()]
    assert len(said) == 2
    assert "t-pods is not its own; the job goes on without one" in said[0]


async def test_without_policies_for_jobs_nobody_else_s_is_looked_at() -> None:
    """The chart's default: the operator has no right to them."""
    server, state = Server(_FOREIGN), _state("")
    await OwnedResources(server, 1.0, None).prepare(state)
    assert server.objects[_OWNER.policy_path] is _FOREIGN
