"""The ConfigMap of strikes: written seldom, merged with others' writes, left alone if foreign."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from holdfast_operator.kube.client import MERGE, KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, UnreachableError
from holdfast_operator.nodes.history import NodeHistory
from holdfast_operator.nodes.strikes import NodeStrike, from_data, to_data
from holdfast_operator.settings import OperatorSettings
from holdfast_wire.strikes import StrikeCause

SETTINGS = OperatorSettings(namespace="holdfast", identity="me", image="i", lease="hold")
PATH = "/api/v1/namespaces/holdfast/configmaps"
NAME = "hold-node-history"


def strike(host: str = "a", uid: str = "u-1", age: float = 0.0) -> NodeStrike:
    """A strike of a job."""
    return NodeStrike(
        host=host,
        cause=StrikeCause.FAILURE,
        unix_time=round(time.time() - age, 3),
        job=f"team/{uid}",
        job_uid=uid,
        text="it crashed",
    )


class ConfigMaps(KubeClient):
    """An API server with at most one ConfigMap, and optimistic concurrency."""

    def __init__(self) -> None:
        super().__init__(1000.0, 1000)
        self.data: dict[str, str] | None = None
        self.version = 7
        self.trouble: Exception | None = None
        self.asked: list[str] = []
        self.events: list[dict[str, Any]] = []

    def put(self, data: dict[str, str] | None) -> None:
        """Change it as somebody else does."""
        self.data, self.version = data, self.version + 1

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """GET, POST and PATCH of the ConfigMap; POST of events."""
        if path.startswith("/apis/events.k8s.io/"):
            self.events.append(body)
            return body
        self.asked.append(method)
        if self.trouble is not None:
            raise self.trouble
        name = body["metadata"]["name"] if body else path.rpartition("/")[2]
        assert path.startswith(PATH)
        assert name == NAME
        if method == "POST" and self.data is not None:
            raise ApiRefusedError(f"POST {path}", 409, "AlreadyExists", "it is there")
        if method != "POST" and self.data is None:
            raise ApiRefusedError(f"{method} {path}", 404, "NotFound", "no such ConfigMap")
        if method == "PATCH" and body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiRefusedError(f"PATCH {path}", 409, "Conflict", "there is a newer one")
        if method != "GET":
            assert (content_type == MERGE) is (method == "PATCH")
            self.put({**(self.data or {}), **body["data"]})
        return {
            "metadata": {"name": name, "uid": "cm-1", "resourceVersion": str(self.version)},
            "data": self.data,
        }

    @property
    def hosts(self) -> list[str]:
        """Hosts of the strikes in it."""
        return [one.host for one in from_data(self.data or {})]


@pytest.fixture
def server() -> ConfigMaps:
    """An API server without the ConfigMap."""
    return ConfigMaps()


async def test_strikes_outlive_the_operator(server: ConfigMaps) -> None:
    """Nothing is written before the first one; a successor begins with all of them."""
    first = NodeHistory(server, SETTINGS)
    await first.see_to_it()
    assert server.asked == ["GET"]
    first.add([strike("a", age=2.0)])
    await first.see_to_it()
    first.add([strike("b", age=1.0)])
    await first.give_up()
    assert server.asked == ["GET", "POST", "PATCH"]
    heard: list[str] = []
    second = NodeHistory(server, SETTINGS, heard.extend)
    await second.see_to_it()
    assert [one.host for one in second.strikes()] == ["a", "b"]
    assert sorted(heard) == ["a", "b"]


async def test_what_is_known_already_is_not_written_again(server: ConfigMaps) -> None:
    """Masters repeat themselves with each new stream."""
    history = NodeHistory(server, SETTINGS)
    known = strike()
    for _ in range(3):
        history.add([known])
        await history.see_to_it()
    assert server.asked == ["GET", "POST"]


async def test_a_change_by_somebody_else_is_merged(server: ConfigMaps) -> None:
    """An earlier leader's last write, a person's edit, a deletion: nothing is lost or put back."""
    history = NodeHistory(server, SETTINGS)
    history.add([strike("a", age=3.0)])
    await history.see_to_it()
    server.put(to_data([strike("b", age=2.0)]))
    history.add([strike("c", age=1.0)])
    for _ in range(2):
        await history.see_to_it()
    assert server.hosts == ["a", "b", "c"]
    server.put(None)
    history.add([strike("d")])
    for _ in range(2):
        await history.see_to_it()
    assert server.hosts == ["a", "b", "c", "d"]


async def test_two_that_make_it_at_once_lose_nothing(server: ConfigMaps) -> None:
    """The second finds it there, reads it and writes both."""
    histories = [NodeHistory(server, SETTINGS) for _ in range(2)]
    for number, history in enumerate(histories):
        await history.see_to_it()
        history.add([strike(f"n{number}", age=5.0 - number)])
    for history in histories:
        for _ in range(2):
            await history.see_to_it()
    assert server.hosts == ["n0", "n1"]


@pytest.mark.parametrize("data", [{}, {"format": "9"}, {"format": "1", "strikes": "[{]"}])
async def test_a_foreign_configmap_is_left_alone_and_said_once(
    server: ConfigMaps,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    data: dict[str, str],
) -> None:
    """In the log and as an event; strikes count until the operator ends."""
    monkeypatch.setattr("holdfast_operator.nodes.history._LOOK_SECONDS", 0.0)
    server.put(data)
    history = NodeHistory(server, SETTINGS)
    history.add([strike()])
    for _ in range(3):
        await history.see_to_it()
    assert (server.data, set(server.asked)) == (data, {"GET"})
    assert [one.host for one in history.elsewhere("u-2", ["a"])] == ["a"]
    said = [one.getMessage() for one in caplog.records if NAME in one.getMessage()]
    assert len(said) == 1
    assert "delete it to have it made anew" in said[0]
    (event,) = server.events
    assert (event["reason"], event["type"]) == ("NodeHistoryUnreadable", "Warning")
    assert event["regarding"]["name"] == NAME
    assert event["metadata"]["namespace"] == "holdfast"
    server.put(None)
    await history.see_to_it()
    assert server.hosts == ["a"]


@pytest.mark.parametrize(
    "trouble",
    [UnreachableError("GET"), ApiRefusedError("GET", 403, "Forbidden", "may not get configmaps")],
)
async def test_without_the_api_server_strikes_count_and_are_written_later(
    server: ConfigMaps,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
) -> None:
    """Also without the right to ConfigMaps, which an older chart does not give: said once."""
    monkeypatch.setattr("holdfast_operator.nodes.history._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("holdfast_operator.nodes.history.WRITE_SECONDS", 0.0)
    server.trouble = trouble
    history = NodeHistory(server, SETTINGS)
    history.add([strike()])
    for _ in range(3):
        await history.see_to_it()
    assert len([one for one in caplog.records if "strikes against nodes" in one.message]) == 1
    assert len(history.elsewhere("u-2", ["a"])) == 1
    server.trouble = None
    await history.see_to_it()
    assert server.hosts == ["a"]


async def test_after_a_refusal_the_api_server_has_peace(server: ConfigMaps) -> None:
    """Each try costs a request, and a right does not come by itself."""
    server.trouble = ApiRefusedError("GET", 403, "Forbidden", "may not get configmaps")
    history = NodeHistory(server, SETTINGS)
    for _ in range(5):
        await history.see_to_it()
    assert len(server.asked) == 1


def test_a_job_is_told_of_others_on_its_nodes_only(server: ConfigMaps) -> None:
    """Its own strikes its master has; those elsewhere are no concern of it."""
    history = NodeHistory(server, SETTINGS)
    history.add([strike("a", "u-1"), strike("a", "u-2"), strike("b", "u-2")])
    assert [(one.host, one.job) for one in history.elsewhere("u-1", ["a"])] == [("a", "team/u-2")]
    assert history.elsewhere("u-1", []) == ()


async def test_nodes_with_trouble_in_several_jobs_are_excluded(server: ConfigMaps) -> None:
    """From the strike on that makes it so; a job in a small cluster has them all the same."""
    names = {f"n{number}" for number in range(10)}
    history = NodeHistory(server, SETTINGS, nodes=lambda: names)
    assert history.excluded(2) == ()
    heavy = [
        dataclasses.replace(strike("n1", uid), cause=StrikeCause.STRAGGLER)
        for uid in ("u-1", "u-2")
    ]
    history.add(heavy)
    (one,) = history.excluded(2)
    assert (one.host, one.reason) == ("n1", "Straggler 1 in team/u-1; Straggler 1 in team/u-2")
    assert history.excluded(10) == ()
    off = dataclasses.replace(SETTINGS, avoided_nodes_percent=0.0)
    without = NodeHistory(server, off, nodes=lambda: names)
    without.add(heavy)
    assert without.excluded(2) == ()
