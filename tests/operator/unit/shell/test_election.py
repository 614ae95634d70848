"""The Lease: one holder at a time, whoever loses it stops."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from holdfast_operator import election
from holdfast_operator.election import Election, LeaseLostError
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.errors import ApiRefusedError, UnreachableError
from holdfast_operator.main import Operator
from holdfast_operator.settings import read_settings


class Leases(KubeClient):
    """An API server that holds Leases, with optimistic concurrency."""

    def __init__(self) -> None:
        super().__init__(1000.0, 1000)
        self.specs: dict[str, dict[str, Any]] = {}
        self.versions: dict[str, int] = {}
        self.away = False

    @property
    def lease(self) -> dict[str, Any]:
        """The one that most tests are about."""
        return self.specs["lease"]

    async def call(
        self, method: str, path: str, body: Any = None, content_type: str = "", **_: Any
    ) -> Any:
        """GET, POST and PUT of a Lease."""
        if self.away:
            raise UnreachableError(path)
        name = body["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        version = self.versions.get(name, 0)
        if method == "GET":
            if name not in self.specs:
                raise ApiRefusedError(path, 404, "NotFound", "")
            return {"metadata": {"resourceVersion": str(version)}, "spec": dict(self.specs[name])}
        stale = method == "PUT" and body["metadata"]["resourceVersion"] != str(version)
        if stale or (method == "POST" and name in self.specs):
            raise ApiRefusedError(path, 409, "Conflict", "")
        self.specs[name], self.versions[name] = dict(body["spec"]), version + 1
        return body


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(election, "_RENEW_SECONDS", 0.2)
    monkeypatch.setattr(election, "_LEASE_SECONDS", 1)


async def test_the_first_wins_and_the_second_waits_until_it_is_given_up() -> None:
    """A replica that ends well lets the next begin at once."""
    server = Leases()
    first, second = Election(server, "ns", "lease", "a"), Election(server, "ns", "lease", "b")
    await first.win()
    assert not await second._try()
    waits = [first.stands_by, second.stands_by]
    await first.give_up()
    await second.win()
    assert [*waits, second.stands_by] == [False, True, False]
    assert (server.lease["holderIdentity"], server.lease["leaseTransitions"]) == ("b", 1)


async def test_a_lease_that_is_not_renewed_is_taken_over() -> None:
    """The waiting replica trusts its own clock only: since when the Lease did not change."""
    server = Leases()
    await Election(server, "ns", "lease", "a").win()
    second = Election(server, "ns", "lease", "b")
    await second.win()
    assert server.lease["holderIdentity"] == "b"


@pytest.mark.parametrize(
    ("away", "holder", "why"),
    [(False, "b", "another replica"), (True, "a", "could not be renewed")],
    ids=["taken", "not renewed"],
)
async def test_a_holder_that_loses_its_lease_stops_before_another_begins(
    holder: str, why: str, *, away: bool
) -> None:
    """At its next renewal, or once the API server is away for longer than that may take."""
    server = Leases()
    first = Election(server, "ns", "lease", "a")
    await first.win()
    server.lease["holderIdentity"], server.away = holder, away
    with pytest.raises(LeaseLostError, match=why):
        await first.keep()


async def test_of_two_that_write_at_once_one_wins() -> None:
    """The one whose write comes second sees the conflict."""
    server = Leases()
    new = {"metadata": {"name": "lease"}, "spec": {}}
    assert await Election(server, "ns", "lease", "a")._write("POST", "", new)
    assert not await Election(server, "ns", "lease", "b")._write("POST", "", new)


async def test_installations_in_one_namespace_do_not_wait_for_each_other() -> None:
    """Each has a Lease of its own name, which is made, renewed and given up under it."""
    server = Leases()
    mine, theirs = Election(server, "ns", "mine", "a"), Election(server, "ns", "theirs", "b")
    assert await mine._try()
    assert await theirs._try()
    assert await mine._try()
    await mine.give_up()
    holders = {name: spec["holderIdentity"] for name, spec in server.specs.items()}
    assert holders == {"mine": "", "theirs": "b"}


async def test_a_renewal_does_not_wait_for_what_the_jobs_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a thousand pods' requests queued, the Lease is renewed and given up at once."""
    needed = {"NAMESPACE": "ns", "IDENTITY": "a", "IMAGE": "i", "LEASE": "lease"}
    operator = Operator(read_settings({f"HOLDFAST_OPERATOR_{k}": v for k, v in needed.items()}))
    server = Leases()

    async def send(_: KubeClient, method: str, path: str, body: Any, *_rest: Any) -> Any:
        return Answer(await server.call(method, path, body))

    monkeypatch.setattr(KubeClient, "_send", send)
    server.specs["lease"] = {"holderIdentity": "a"}
    for _ in range(10_000):
        operator._client._bucket.take(time.monotonic())
    async with asyncio.timeout(5.0):
        assert await operator._election._try()
        await operator._election.give_up()
    assert server.lease["holderIdentity"] == ""


class Answer:
    """A response of the client library to a request that was not refused."""

    status = 200

    def __init__(self, body: Any) -> None:
        self._body = body

    async def read(self) -> bytes:
        """The body."""
        return json.dumps(self._body).encode()
