"""How a job's workers are asked of a queue, and how many may run. Pure.

Kueue admits and evicts a Workload as a whole. So a job asks in slices, each a Workload: the core
has `minReplicas` workers (and the master), every further slice a few more. A more important job
then takes slices, newest first, and the rest trains on: the job shrinks where a single Workload
would be stopped. A freed quota brings slices back, and the job grows.

Workers beyond the admitted ones are deleted before their slice's quota is given back: at no time
does a pod run without a reservation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

CORE: Final = 0
"""Index of the slice without which the job does not run."""
MOST_SLICES: Final = 8
"""Slices beside the core: more shrink a job by smaller parts, and cost the queue more objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """What a queue's flavor adds to the pods of a slice."""

    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A Workload of the job."""

    index: int
    """0: the core."""
    name: str
    workers: int
    reserved: bool = False
    """It holds quota."""
    admitted: bool = False
    """Its pods may run, unless it is evicted."""
    evicted: bool = False
    """The queue takes the quota back; it is held until the job gives it back."""
    reason: str = ""
    """Reason of an eviction, or of waiting, for people."""
    placement: Placement = Placement()

    @property
    def usable(self) -> bool:
        """True if its pods may run."""
        return self.admitted and not self.evicted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the job wants, and what it has."""

    workers: int
    """Worker pods that the spec asks for, standbys included."""
    least: int
    """Fewest with which it trains."""
    most: int
    """Most that it may ever want: the sizes of slices follow from it."""
    unit: int
    """Workers come in multiples of this."""
    pods: int
    """Worker pods that exist, also those that are ending."""
    master: bool
    """A master pod exists."""
    stopped: bool = False
    """It is suspended by its owner, or ended, or deleted: it wants no quota."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may run, and what the queue is asked."""

    workers: int
    """Worker pods that may run; 0: not even the core was admitted."""
    placements: tuple[tuple[int, Placement], ...] = ()
    """For so many workers each, by rank: additions to their pods."""
    create: tuple[tuple[int, int], ...] = ()
    """Index and workers of slices to ask for."""
    release: tuple[str, ...] = ()
    """Evicted slices whose pods are gone: their quota goes back, and they wait again."""
    delete: tuple[str, ...] = ()
    """Slices that are not wanted any more, without a pod."""
    reason: str = ""
    """Reason for running fewer workers than wanted, for people; empty: all are admitted."""

    def placement(self, rank: int) -> Placement:
        """Return the additions to the pod of a worker; of the master: those of rank 0."""
        end = 0
        for workers, placement in self.placements:
            end += workers
            if rank < end:
                return placement
        return Placement()


def slice_size(demand: Demand) -> int:
    """Return how many workers a slice beside the core has: a multiple of the unit."""
    units = -(-(demand.most - demand.least) // demand.unit)
    return demand.unit * max(1, -(-units // MOST_SLICES))


def judge(slices: Sequence[Slice], demand: Demand) -> Verdict:
    """Decide how many workers may run, and what to ask of the queue.

    slices: The job's Workloads, in any order.
    """
    known = sorted(slices, key=lambda one: one.index)
    core = known[0] if known and known[0].index == CORE else None
    if demand.stopped:
        return _stopped(known, demand)
    if core is None:
        # Slices whose core is gone belong to an earlier start; they hold quota for nothing.
        idle = tuple(one.name for one in known) if not demand.pods else ()
        create = () if known else ((CORE, demand.least),)
        return Verdict(workers=0, delete=idle, create=create, reason="it is being queued")
    if not core.usable:
        return _waiting(core, known[1:], demand)
    usable = [core, *(one for one in known[1:] if one.usable)]
    admitted = sum(one.workers for one in usable)
    if admitted < demand.least:
        reason = f"{admitted} of at least {demand.least} workers are admitted"
        return Verdict(
            workers=0,
            create=_missing(known, demand),
            release=_releases(known, demand),
            reason=reason,
        )
    workers = min(admitted, demand.workers)
    delete = _surplus(known, demand)
    return Verdict(
        workers=workers,
        placements=tuple((one.workers, one.placement) for one in usable),
        create=_missing(known, demand),
        release=_releases(known, demand),
        delete=delete,
        reason="" if workers == demand.workers else _shortage(known, workers, demand),
    )


def _stopped(known: Sequence[Slice], demand: Demand) -> Verdict:
    """A job that wants nothing gives everything back, once its pods are gone."""
    idle = not demand.pods and not demand.master
    return Verdict(workers=0, delete=tuple(one.name for one in known) if idle else ())


def _waiting(core: Slice, others: Sequence[Slice], demand: Demand) -> Verdict:
    """Without its core a job runs nothing, and must not keep quota that others wait for."""
    idle = not demand.pods and not demand.master
    held = core.evicted and core.reserved
    return Verdict(
        workers=0,
        release=(core.name,) if idle and held else (),
        delete=tuple(one.name for one in others) if idle else (),
        reason=core.reason or "it waits for its queue",
    )


def _missing(known: Sequence[Slice], demand: Demand) -> tuple[tuple[int, int], ...]:
    """Return the slices to ask for: as many as cover what the spec wants."""
    lacking = demand.workers - sum(one.workers for one in known)
    index = known[-1].index + 1
    size = slice_size(demand)
    made = []
    while lacking > 0:
        workers = min(size, lacking)
        made.append((index, workers))
        index, lacking = index + 1, lacking - workers
    return tuple(made)


def _surplus(known: Sequence[Slice], demand: Demand) -> tuple[str, ...]:
    """Return the slices that the spec does not need, without pods: waiting ones, then newest."""
    covered = sum(one.workers for one in known)
    held = sum(one.workers for one in known if one.reserved)
    names = []
    for one in sorted(known[1:], key=lambda one: (one.reserved, -one.index)):
        if covered - one.workers < demand.workers:
            continue
        if one.reserved and held - one.workers < demand.pods:
            continue  # its pods are still ending
        names.append(one.name)
        covered -= one.workers
        held -= one.workers if one.reserved else 0
    return tuple(names)


def _releases(known: Sequence[Slice], demand: Demand) -> tuple[str, ...]:
    """Return the evicted slices that no pod needs any more."""
    held = sum(one.workers for one in known if one.reserved)
    names = []
    for one in reversed(known[1:]):
        if one.evicted and one.reserved and held - one.workers >= demand.pods:
            names.append(one.name)
            held -= one.workers
    return tuple(names)


def _shortage(known: Sequence[Slice], workers: int, demand: Demand) -> str:
    why = next((one.reason for one in known if not one.usable and one.reason), "")
    text = f"{workers} of {demand.workers} workers are admitted"
    return f"{text}: {why}" if why else text
