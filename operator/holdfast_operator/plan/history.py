"""Memory of each pod slot between two plans: numbers, failures, waits, refusals of the API server.

Existing pods do not show the number of the next pod, how often its predecessors failed at once, or
since when a pod is surplus. The history is folded from observations only, so a planner without it
starts again from the existing pods. A refused pod (a quota is used up, a policy refuses) is no
failure of the job: it waits, longer and longer, and the status has the API server's text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast_operator.plan.pods import ObservedPod, PodSlot, Role
from holdfast_operator.spec.job import NO_VERSION, SpecVersion
from holdfast_wire.messages import PodPhase

SETTLED_SECONDS: Final = 10.0
"""A pod that ended sooner, without its agent ever having been connected, failed at once. An agent
needs about 3 s to import torch on a busy machine. While the master is away nobody else counts
failures: a worker that fails then failed at once, however long it lived."""
FIRST_WAIT_SECONDS: Final = 1.0
"""Wait before the third pod of a row that fails at once. The second is made without a wait, because
one early end is more often a fault from outside than a pod that cannot start."""
LONGEST_WAIT_SECONDS: Final = 60.0
"""The wait doubles up to this, so that a mended image or disk is noticed within a minute."""
EXTRA_ATTEMPTS: Final = 8
"""Pods of an extra role in a row that fail at once before their place stays empty: with the waits
about a minute. The world does not need them, so the job goes on. Workers and the master have
budgets and attempts of their own, which end it."""
FIRST_REFUSAL_SECONDS: Final = 1.0
"""Wait after the first refusal: often quota becomes free as a pod of the same job goes."""
LONGEST_REFUSAL_SECONDS: Final = 30.0
"""The wait doubles up to this, so that a raised quota is noticed within half a minute."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotHistory:
    """Memory of one place."""

    incarnation: int = -1
    """Number of its newest pod; -1 before the first."""
    born: float = 0.0
    """Time at which that pod was made; Unix time, s."""
    uid: str = ""
    """Uid of that pod, for the master."""
    settled: bool = False
    """True: that pod's agent was connected once."""
    leaving: bool = False
    """True: that pod was being deleted when it was last seen."""
    ended: int = -1
    """Number of the newest pod whose end was noted."""
    succeeded: bool = False
    """True: that pod ended with success, so it needs no successor by itself."""
    removed: bool = False
    """True: that pod was being deleted when it ended."""
    spared: bool = False
    """True: that pod was surplus once, so its success shows that it left, not that its work is
    done."""
    quick: int = 0
    """Pods in a row that failed at once."""
    not_before: float = 0.0
    """Earliest time for a new pod; Unix time, s."""
    surplus_since: float | None = None
    """Time since which its pod is surplus; None: it is wanted."""
    surplus_version: SpecVersion = NO_VERSION
    """Version of the spec that made it surplus."""

    @property
    def done(self) -> bool:
        """True if its training has ended well: a worker gets no successor by itself."""
        return self.succeeded and not self.removed

    @property
    def given_up(self) -> bool:
        """True if another pod of an extra role would only fail at once again."""
        return self.quick >= EXTRA_ATTEMPTS and not self.succeeded


History = Mapping[PodSlot, SlotHistory]
UNKNOWN: Final = SlotHistory()
"""Of a place that never had a pod: made once, because each plan asks a few times for each place."""


def wait_after(quick: int) -> float:
    """Return the seconds between a pod's end and its successor, after `quick` early failures."""
    if quick <= 1:
        return 0.0
    return float(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(quick - 2, 30)))


def observe(
    history: History,
    pods: Mapping[PodSlot, tuple[ObservedPod, ...]],
    wanted: Iterable[PodSlot],
    version: SpecVersion,
    now: float,
    *,
    mastered: bool = True,
) -> dict[PodSlot, SlotHistory]:
    """Return the history after one more look at the pods; a second look changes nothing.

    Args:
        history: The history before.
        pods: Existing pods, by place, the oldest first.
        wanted: Places that should be filled now, by the spec of this version.
        version: That version.
        now: Unix time, s.
        mastered: True: the master is connected, and judges the workers.
    """
    needed = frozenset(wanted)
    result: dict[PodSlot, SlotHistory] = {}
    for slot in sorted(history.keys() | pods.keys()):
        alone = slot.role is Role.WORKER and not mastered
        entry = _look(history.get(slot, UNKNOWN), pods.get(slot, ()), now, alone=alone)
        surplus = None if slot in needed else version
        result[slot] = _note_need(entry, slot, surplus, now)
    return result


def _look(
    entry: SlotHistory, pods: tuple[ObservedPod, ...], now: float, *, alone: bool
) -> SlotHistory:
    newest = pods[-1] if pods else None
    if newest is not None and newest.incarnation > entry.incarnation:
        entry = dataclasses.replace(
            entry,
            incarnation=newest.incarnation,
            uid=newest.uid,
            born=newest.created_at,
            settled=False,
            leaving=False,
            succeeded=False,
            removed=False,
            spared=False,
        )
    current = newest if newest is not None and newest.incarnation == entry.incarnation else None
    if current is not None and current.ready and current.proven and not entry.settled:
        entry = dataclasses.replace(entry, settled=True)
    if current is not None and current.live:
        return _alive(entry, current, now, alone=alone)
    if entry.ended < entry.incarnation:
        return _ended(entry, current, now, alone=alone)
    return entry


def _alive(entry: SlotHistory, pod: ObservedPod, now: float, *, alone: bool) -> SlotHistory:
    well = not alone and (entry.settled or now - entry.born >= SETTLED_SECONDS)
    quick = 0 if well else entry.quick
    if (quick, pod.deleting) == (entry.quick, entry.leaving):
        return entry
    return dataclasses.replace(entry, leaving=pod.deleting, quick=quick)


def _ended(entry: SlotHistory, pod: ObservedPod | None, now: float, *, alone: bool) -> SlotHistory:
    ended_at = pod.ended_at if pod is not None and pod.ended_at is not None else now
    taken = entry.leaving or (pod is not None and (pod.deleting or pod.lost))
    quick = _quick(entry, ended_at, taken=taken, alone=alone)
    return dataclasses.replace(
        entry,
        ended=entry.incarnation,
        succeeded=pod is not None and pod.phase is PodPhase.SUCCEEDED and not entry.spared,
        removed=taken,
        quick=quick,
        not_before=ended_at + (wait_after(quick) if quick > entry.quick else 0.0),
    )


def _quick(entry: SlotHistory, ended_at: float, *, taken: bool, alone: bool) -> int:
    """Return the pods in a row that failed at once, after this one's end."""
    if taken:
        return entry.quick  # it was deleted, or its node went: that proves nothing
    if not alone and (entry.settled or ended_at - entry.born >= SETTLED_SECONDS):
        return 0
    return entry.quick + 1


def _note_need(
    entry: SlotHistory, slot: PodSlot, version: SpecVersion | None, now: float
) -> SlotHistory:
    """Return the entry with the time since which its pod is surplus; `version` None: wanted."""
    if version is None:
        return (
            entry if entry.surplus_since is None else dataclasses.replace(entry, surplus_since=None)
        )
    if slot.role is Role.WORKER and (entry.succeeded or not entry.spared):
        # A worker that is wanted again takes part in a new world, whatever its last pod did. That
        # pod's end may become known only after the worker is wanted again.
        entry = dataclasses.replace(entry, succeeded=False, spared=True)
    if entry.surplus_since is not None:
        return entry
    if slot.role is Role.EXTRA:
        # Wanted again, after a suspension or another size: that is a new try.
        entry = dataclasses.replace(entry, quick=0, not_before=0.0)
    return dataclasses.replace(entry, surplus_since=now, surplus_version=version)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiRefusal:
    """Refusal of one place's pod."""

    text: str
    """Text of the API server."""
    tries: int
    """Number of refusals in a row."""
    not_before: float
    """Earliest time of the next try; Unix time, s."""


Refusals = Mapping[PodSlot, ApiRefusal]


def refused(before: ApiRefusal | None, text: str, now: float) -> ApiRefusal:
    """Return the refusal after one more; `before`: the last one in a row."""
    tries = 1 if before is None else before.tries + 1
    wait = min(LONGEST_REFUSAL_SECONDS, FIRST_REFUSAL_SECONDS * 2 ** min(tries - 1, 30))
    return ApiRefusal(text=text, tries=tries, not_before=now + wait)
