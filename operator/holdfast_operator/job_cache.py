"""Cache of the newest object of each job, from the watch. Touches nothing outside.

The watch delivers the events of one object in order, but those of two objects with the same name in
any order. After a gap it reports no deletions. So each object counts, by its uid, until it is
reported gone. If a name seems to have two objects, the API server has to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast_operator.state.job_state import Key, with_spec_of

Body = Mapping[str, Any]


class SeenJob(NamedTuple):
    """One job as its status shows it."""

    key: Key
    phase: str
    """Pending: it has no status yet."""
    reason: str
    """Why it has failed; empty: it has not."""


class JobCache:
    """Objects by name and uid of their job."""

    def __init__(self) -> None:
        """Begin without objects."""
        self._bodies: dict[Key, dict[str, Body]] = {}
        self._going: set[str] = set()
        """Uids of the jobs that have not ended."""

    @property
    def going(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._going)

    def newest(self, key: Key) -> Body | None:
        """Return the newest known object of a name; of two, the one made later."""
        bodies = self._bodies.get(key, {}).values()
        # Times in RFC 3339 and UTC sort as text. If two are equal, the last one counts.
        return max(
            reversed(bodies), key=lambda one: one["metadata"]["creationTimestamp"], default=None
        )

    def seen(self) -> list[SeenJob]:
        """Return each name's newest object."""
        found = ((key, self.newest(key)) for key in self._bodies)
        return [_shown(key, one.get("status") or {}) for key, one in found if one]

    def bodies(self, key: Key) -> dict[str, Body]:
        """Return all known objects of a name by uid; several: all but one of them are gone."""
        return dict(self._bodies.get(key, {}))

    def add(self, key: Key, body: Body) -> bool:
        """Note an object that was seen; return False for a version that is known, or older.

        The operator's own writes come back as events: their answers were known before.
        """
        of_name = self._bodies.setdefault(key, {})
        known = of_name.get(_uid(body))
        if known is not None and (same_version(body, known) or _version(body) < _version(known)):
            return False
        of_name[_uid(body)] = body if known is None else with_spec_of(known, body)
        ended = "completionTime" in (body.get("status") or {})
        (self._going.discard if ended else self._going.add)(_uid(body))
        return True

    def update(self, key: Key, body: Body, before: Body) -> None:
        """Note the answer to a request on an object; an object that came meanwhile is newer."""
        if self._bodies.get(key, {}).get(_uid(body)) is before:
            self.add(key, body)

    def clear(self, namespace: str) -> list[Key]:
        """Forget all objects of a namespace; return their names."""
        left = [key for key in self._bodies if key[0] == namespace]
        for key in left:
            for uid in self.bodies(key):
                self.delete(key, uid)
        return left

    def delete(self, key: Key, uid: str) -> None:
        """Note that an object is gone."""
        of_name = self._bodies.get(key, {})
        of_name.pop(uid, None)
        self._going.discard(uid)
        if not of_name:
            self._bodies.pop(key, None)


def _shown(key: Key, status: Body) -> SeenJob:
    failed = (one for one in status.get("conditions", ()) if one["type"] == "Failed")
    reason = next((one["reason"] for one in failed if one["status"] == "True"), "")
    return SeenJob(key, status.get("phase") or "Pending", reason)


def same_version(one: Body, other: Body) -> bool:
    """Return True if both are one version of an object."""
    mine, its = one["metadata"], other["metadata"]
    return bool(mine["resourceVersion"] == its["resourceVersion"])


def _uid(body: Body) -> str:
    uid: str = body["metadata"]["uid"]
    return uid


def _version(body: Body) -> tuple[int, int]:
    """Return numbers that grow with an object's versions, as far as they are numbers."""
    metadata = body["metadata"]
    version = str(metadata.get("resourceVersion", ""))
    return int(metadata.get("generation", 0)), int(version) if version.isdecimal() else 0
