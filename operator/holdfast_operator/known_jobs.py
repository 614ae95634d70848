"""The newest object of each job, as the watch brought it. Touches nothing outside.

The watch hands the events of one object on in their order, but those of two that had one name after
the other in any; and after a gap it does not tell what has gone. So each object counts until it is
said to be gone, by its uid, and a name that two seem to have is to be asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast_operator.job_keeper import Key

Body = Mapping[str, Any]


class KnownJobs:
    """Objects by the name and the uid of their job."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._bodies: dict[Key, dict[str, Body]] = {}

    def newest(self, key: Key) -> Body | None:
        """The object that has a name now, as far as is known; of two the one made later."""
        bodies = list(self._bodies.get(key, {}).values())
        # Of equals `max` takes the first.
        return max(reversed(bodies), key=_created, default=None)

    def uids(self, key: Key) -> set[str]:
        """Of all objects that seem to have a name; more than one: all but one are gone."""
        return set(self._bodies.get(key, ()))

    def take(self, key: Key, body: Body) -> None:
        """An object was seen."""
        self._bodies.setdefault(key, {})[_uid(body)] = body

    def renew(self, key: Key, body: Body, before: Body) -> None:
        """A request on an object was answered with it; what has come meanwhile is newer."""
        if self._bodies.get(key, {}).get(_uid(body)) is before:
            self.take(key, body)

    def drop(self, key: Key, uid: str) -> None:
        """An object is gone."""
        of_name = self._bodies.get(key, {})
        of_name.pop(uid, None)
        if not of_name:
            self._bodies.pop(key, None)


def _uid(body: Body) -> str:
    uid: str = body["metadata"]["uid"]
    return uid


def _created(body: Body) -> str:
    created: str = body["metadata"]["creationTimestamp"]  # RFC 3339 in UTC: its order is time's
    return created
