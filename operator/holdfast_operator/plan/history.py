"""What has to be remembered of each place between two plans: numbers, failures, waits.

Pods come and go; which number the next one gets, how often its predecessors failed at once, and
since when a pod is surplus cannot be read from those that exist. The history is folded from
observations only, so a planner that lost it starts again from the pods that there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast_operator.plan.pods import ObservedPod, Role, Slot
from holdfast_wire.messages import PodPhase

SETTLED_S: Final = 10.0
"""A pod that ended sooner, without its agent ever having been connected, failed at once. An agent
needs about 3 s to import torch on a busy machine."""
FIRST_WAIT_S: Final = 1.0
"""Wait before the third pod of a row that fails at once; the second is made without any, because
one early end is more often a fault from outside than a pod that cannot start."""
LONGEST_WAIT_S: Final = 60.0
"""The wait doubles up to this, so that a mended image or disk is noticed within a minute."""
EXTRA_ATTEMPTS: Final = 8
"""Pods of an extra role in a row that fail at once before their place stays empty: with the waits
about a minute. The world does not need them, so the job goes on; workers and the master have
budgets and attempts of their own, which end it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotHistory:
    """What is remembered of one place."""

    incarnation: int = -1
    """Number of its newest pod; -1 before the first."""
    born: float = 0.0
    """When that pod was made; Unix time, s."""
    uid: str = ""
    """What the master knows that pod by."""
    settled: bool = False
    """That pod's agent was connected once."""
    leaving: bool = False
    """That pod was being deleted when it was last seen."""
    ended: int = -1
    """Number of the newest pod whose end was noted."""
    succeeded: bool = False
    """That pod ended with success, so it needs no successor by itself."""
    removed: bool = False
    """That pod was being deleted when it ended."""
    spared: bool = False
    """That pod was more than was wanted once: its success says that it left, not that its work is
    done."""
    quick: int = 0
    """Pods in a row that failed at once."""
    not_before: float = 0.0
    """No new pod sooner than this; Unix time, s."""
    surplus_since: float | None = None
    """Since when its pod is more than is wanted; None where it is wanted."""
    surplus_generation: int = 0
    """Generation of the spec that made it surplus."""

    @property
    def given_up(self) -> bool:
        """Whether a pod of an extra role here would only fail at once again."""
        return self.quick >= EXTRA_ATTEMPTS and not self.succeeded


History = Mapping[Slot, SlotHistory]


def wait_after(quick: int) -> float:
    """Seconds between the end of a pod and its successor, after `quick` that failed at once."""
    if quick <= 1:
        return 0.0
    return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(quick - 2, 30)))


def observe(
    history: History,
    pods: Mapping[Slot, tuple[ObservedPod, ...]],
    wanted: Iterable[Slot],
    generation: int,
    now: float,
) -> dict[Slot, SlotHistory]:
    """The history after one more look at the pods; looking twice changes nothing.

    Args:
        history: As it was.
        pods: Those that exist, by place, the oldest first.
        wanted: Places that should be filled now.
        generation: Of the spec that says so.
        now: Unix time, s.
    """
    needed = frozenset(wanted)
    result: dict[Slot, SlotHistory] = {}
    for slot in sorted(history.keys() | pods.keys()):
        entry = _look(history.get(slot, SlotHistory()), pods.get(slot, ()), now)
        surplus = None if slot in needed else generation
        result[slot] = _note_need(entry, slot, surplus, now)
    return result


def _look(entry: SlotHistory, pods: tuple[ObservedPod, ...], now: float) -> SlotHistory:
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
        return _alive(entry, current, now)
    if entry.ended < entry.incarnation:
        return _ended(entry, current, now)
    return entry


def _alive(entry: SlotHistory, pod: ObservedPod, now: float) -> SlotHistory:
    well = entry.settled or now - entry.born >= SETTLED_S
    quick = 0 if well else entry.quick
    if (quick, pod.deleting) == (entry.quick, entry.leaving):
        return entry
    return dataclasses.replace(entry, leaving=pod.deleting, quick=quick)


def _ended(entry: SlotHistory, pod: ObservedPod | None, now: float) -> SlotHistory:
    ended_at = pod.ended_at if pod is not None and pod.ended_at is not None else now
    taken = entry.leaving or (pod is not None and (pod.deleting or pod.lost))
    quick = _quick(entry, ended_at, taken=taken)
    return dataclasses.replace(
        entry,
        ended=entry.incarnation,
        succeeded=pod is not None and pod.phase is PodPhase.SUCCEEDED and not entry.spared,
        removed=taken,
        quick=quick,
        not_before=ended_at + (wait_after(quick) if quick > entry.quick else 0.0),
    )


def _quick(entry: SlotHistory, ended_at: float, *, taken: bool) -> int:
    """Pods in a row that failed at once, after this one's end."""
    if taken:
        return entry.quick  # somebody wanted it gone, or its node went: it proves nothing
    if entry.settled or ended_at - entry.born >= SETTLED_S:
        return 0
    return entry.quick + 1


def _note_need(entry: SlotHistory, slot: Slot, generation: int | None, now: float) -> SlotHistory:
    """The entry with since when its pod is surplus; `generation` is None where it is wanted."""
    if generation is None:
        return (
            entry if entry.surplus_since is None else dataclasses.replace(entry, surplus_since=None)
        )
    if slot.role is Role.WORKER and (entry.succeeded or not entry.spared):
        # A worker that is wanted again takes part in a new world, whatever its last pod did or
        # will be seen to have done: its end may become known only once it is wanted again.
        entry = dataclasses.replace(entry, succeeded=False, spared=True)
    if entry.surplus_since is not None:
        return entry
    if slot.role is Role.EXTRA:
        # Wanted again, after a suspension or another size: that is a new try.
        entry = dataclasses.replace(entry, quick=0, not_before=0.0)
    return dataclasses.replace(entry, surplus_since=now, surplus_generation=generation)
