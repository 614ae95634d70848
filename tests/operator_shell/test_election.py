"""The Lease: one holder at a time, whoever loses it stops."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast_operator import election
from holdfast_operator.election import Election, LeaseLostError
from holdfast_operator.kube.client import KubeClient
from holdfast_operator.kube.failures import RefusedError, UnreachableError


class OneLease(KubeClient):
    """An API server that holds one Lease, with optimistic concurrency."""

    def __init__(self) -> None:
        super().__init__(1000.0, 1000)
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
        """GET, POST and PUT of the Lease."""
        if self.away:
            raise UnreachableError(path)
        if method == "GET":
            if self.lease is None:
                raise RefusedError(path, 404, "NotFound", "")
            version = {"resourceVersion": str(self.version)}
            return {"metadata": version, "spec": dict(self.lease)}
        stale = method == "PUT" and body["metadata"]["resourceVersion"] != str(self.version)
        if stale or (method == "POST" and self.lease is not None):
            raise RefusedError(path, 409, "Conflict", "")
        self.lease, self.version = dict(body["spec"]), self.version + 1
        return body


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "_RETRY_S", 0.01)
    monkeypatch.setattr(election, "_RENEW_S", 0.2)
    monkeypatch.setattr(election, "_LEASE_S", 1)


async def test_the_first_wins_and_the_second_waits_until_it_is_given_up() -> None:
    """A replica that ends well lets the next begin at once."""
    server = OneLease()
    first, second = Election(server, "ns", "a"), Election(server, "ns", "b")
    await first.win()
    assert not await second._try()
    await first.give_up()
    await second.win()
    assert server.lease is not None
    assert (server.lease["holderIdentity"], server.lease["leaseTransitions"]) == ("b", 1)


async def test_a_lease_that_is_not_renewed_is_taken_over() -> None:
    """The waiting replica trusts its own clock only: since when the Lease did not change."""
    server = OneLease()
    await Election(server, "ns", "a").win()
    second = Election(server, "ns", "b")
    await second.win()
    assert server.lease is not None
    assert server.lease["holderIdentity"] == "b"


async def test_a_holder_whose_lease_was_taken_stops() -> None:
    """It does so at its next renewal."""
    server = OneLease()
    first = Election(server, "ns", "a")
    await first.win()
    assert server.lease is not None
    server.lease["holderIdentity"] = "b"
    with pytest.raises(LeaseLostError, match="another replica"):
        await first.keep()


async def test_a_holder_that_cannot_renew_stops_before_another_begins() -> None:
    """The API server is away for longer than the renewal may take."""
    server = OneLease()
    first = Election(server, "ns", "a")
    await first.win()
    server.away = True
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        await first.keep()


async def test_of_two_that_write_at_once_one_wins() -> None:
    """The one whose write comes second sees the conflict."""
    server = OneLease()
    assert await Election(server, "ns", "a")._write("POST", "", {"spec": {}})
    assert not await Election(server, "ns", "b")._write("POST", "", {"spec": {}})
