"""Requests whose effect the cache of the cluster does not show yet: pods made, pods deleted.

The name is client-go's. The cache lags behind the API server: without this a pod would be made
twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from holdfast_operator.plan.actions import Action, CreatePod, DeletePod
from holdfast_operator.pods.record import PodRecord

EXPECT_SECONDS: Final = 30.0
"""Time after which a request without a visible effect is repeated."""
EXISTS_SECONDS: Final = 1.0
"""The same for a pod that existed already when it was to be made: the cache shows it sooner."""


@dataclasses.dataclass(slots=True)
class Expectations:
    """Expectations of one job."""

    until: dict[str, float] = dataclasses.field(default_factory=dict)
    """Names of pods that were made and uids of pods that were deleted, both not seen yet →
    monotonic time at which the wait ends."""
    deletions: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods that the operator has deleted."""

    @property
    def open(self) -> bool:
        """True while the effect of a request has not shown."""
        return bool(self.until)

    def pod_made(self, name: str, until: float, pods: Iterable[PodRecord]) -> None:
        """Wait for a pod to show, unless it shows already."""
        if all(name != pod.name for pod in pods):
            self.until[name] = until

    def delete(self, uid: str, until: float, *, forced: bool) -> None:
        """Note a deletion that is about to be requested.

        A forced one is awaited whatever its result: it only spares connections, and must delay
        nothing.
        """
        self.deletions.add(uid)
        if forced:
            self.until[_by_force(uid)] = until

    def deletion_asked(self, uid: str, until: float, pods: Iterable[PodRecord]) -> None:
        """Wait for a deletion to show, unless it shows already."""
        pod = next((pod for pod in pods if pod.uid == uid), None)
        if pod is None:  # its end was seen before the answer: no event will follow
            self.deletions.discard(uid)
        elif not pod.deleting:
            self.until[uid] = until

    def shows(self, pod: PodRecord, *, gone: bool) -> None:
        """Drop every expectation that a pod meets."""
        self.until.pop(pod.name, None)
        if pod.deleting or gone:
            self.until.pop(pod.uid, None)
        if gone:
            self.until.pop(_by_force(pod.uid), None)
            self.deletions.discard(pod.uid)

    def expire(self, now: float) -> None:
        """Drop expectations that were not met in time: they keep no template in force any more."""
        self.until = {what: until for what, until in self.until.items() if until > now}

    def wait(self, action: Action, now: float) -> float:
        """Return the seconds to wait for the effect of a recent action; 0: carry the action out."""
        match action:
            case CreatePod():
                what = action.name
            case DeletePod():
                what = action.uid if action.grace_s else _by_force(action.uid)
            case _:
                return 0.0
        left = self.until.get(what, now) - now
        if left <= 0:
            self.until.pop(what, None)
        return max(0.0, left)


def _by_force(uid: str) -> str:
    """Return the key in `until` of a deletion without a grace, which may follow one with one."""
    return f"{uid} by force"
