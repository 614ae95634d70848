"""Slices in which a queue is asked for a job's workers, and the number that may run. Pure.

Kueue admits and evicts a Workload as a whole. So a job asks in slices, each a Workload: the core
has `minReplicas` workers (and the master), every further slice a few more. A more important job
then takes slices, newest first, and the rest trains on: the job shrinks where a single Workload
would be stopped. A freed quota brings slices back, and the job grows.

Workers beyond the admitted ones are deleted before their slice's quota is given back: at no time
does a pod run without a reservation.

All slices are in the core's flavor: which ranks a preemption takes does not matter then.

What a Workload counts never changes: more pods of an extra role, or more memory for a worker, than
it has are held back until the job is queued anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast_operator.spec.quantities import in_mebibytes

CORE: Final = 0
"""Index of the slice without which the job does not run."""
MOST_SLICES: Final = 8
"""Slices beside the core: more shrink a job by smaller parts, and cost the queue more objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """What a queue's flavor adds to the pods of one role."""

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
    started: bool = False
    """The queue was told that its pods are ready."""
    stale: bool = False
    """It was asked for in another queue, or with other templates than the job has now."""
    placements: Mapping[str, Placement] = dataclasses.field(default_factory=dict)
    """Additions to its pods by role, as admitted."""
    roles: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Pods of each extra role that it counts."""
    memory: int = 0
    """Memory limit with which it counts a worker, bytes; 0: none."""

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
    ranks: Sequence[int]
    """Ranks of the worker pods that exist, also of those that are ending."""
    ready: int
    """Worker pods that are ready."""
    others: bool
    """A pod of the master or of an extra role exists."""
    stopped: bool = False
    """It is suspended by its owner, or ended, or deleted: it wants no quota."""
    roles: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Pods that the spec asks for of each extra role."""
    memory: int = 0
    """Greatest memory limit that a worker may come to have, bytes; 0: it has none."""

    @property
    def pods(self) -> int:
        """Number of worker pods that exist."""
        return len(self.ranks)

    def use(self, workers: int) -> int:
        """Return how many worker pods there are once all missing ones of so many are made."""
        return workers + self.pods - len({rank for rank in self.ranks if rank < workers})

    @property
    def idle(self) -> bool:
        """True if no pod uses quota."""
        return not self.pods and not self.others


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may run, and what the queue is asked."""

    workers: int
    """Worker pods that may run; 0: not even the core was admitted."""
    placements: Mapping[str, Placement] = dataclasses.field(default_factory=dict)
    """Additions to the pods by role."""
    roles: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Pods that may run of each extra role."""
    memory: int = 0
    """Most memory that a worker may get, bytes; 0: what its template says."""
    create: tuple[tuple[int, int], ...] = ()
    """Index and workers of slices to ask for."""
    release: tuple[str, ...] = ()
    """Evicted slices whose pods are gone: their quota goes back, and they wait again."""
    started: tuple[str, ...] = ()
    """Slices whose pods are ready: a queue may evict what does not start in time."""
    delete: tuple[str, ...] = ()
    """Slices that are not wanted any more, without a pod."""
    reason: str = ""
    """Reason for running less than wanted, for people; empty: all is admitted."""


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
        return _without(known, demand, "")
    if any(one.stale for one in known):
        return _without(known, demand, "its queue or its templates changed: it is queued anew")
    if core is None:
        # Slices whose core is gone belong to an earlier start; they hold quota for nothing.
        create = () if known else ((CORE, demand.least),)
        return dataclasses.replace(_without(known, demand, "it is being queued"), create=create)
    if not core.usable:
        return _waiting(core, known[1:], demand)
    return _running(core, known, demand)


def _running(core: Slice, known: Sequence[Slice], demand: Demand) -> Verdict:
    """Decide for a job whose core may run; `known`: all slices, the core first."""
    use = demand.use(min(sum(one.workers for one in known if one.usable), demand.workers))
    delete = _surplus(known, demand, use)
    # What is given back by one rule is not there for the next one.
    kept = [one for one in known if one.name not in delete]
    admitted = sum(one.workers for one in kept if one.usable)
    if admitted < demand.least:
        # Two such jobs would wait for each other for ever if each kept its part.
        reason = f"{admitted} of at least {demand.least} workers are admitted: it is queued anew"
        return _without(known, demand, reason)
    workers = min(admitted, demand.workers)
    # Any rank may be in any slice.
    memory = min(one.memory for one in kept if one.usable)
    short = "" if workers == demand.workers else _shortage(kept, workers, demand)
    return Verdict(
        workers=workers,
        placements=core.placements,
        roles=core.roles,
        memory=memory,
        create=_missing(known, demand),
        release=_releases(kept, use),
        started=_started(kept, demand),
        delete=delete,
        reason="; ".join(filter(None, (short, *_held_back(core.roles, memory, demand)))),
    )


def _without(known: Sequence[Slice], demand: Demand, reason: str) -> Verdict:
    """Give everything back, once all pods are gone."""
    names = tuple(one.name for one in known) if demand.idle else ()
    return Verdict(workers=0, delete=names, reason=reason)


def _waiting(core: Slice, others: Sequence[Slice], demand: Demand) -> Verdict:
    """Without its core a job runs nothing, and must not keep quota that others wait for."""
    changed = core.workers != demand.least or core.roles != demand.roles
    if not core.reserved and (changed or core.memory < demand.memory):
        return _without([core, *others], demand, "what it asks for changed: it is queued anew")
    held = core.evicted and core.reserved
    return Verdict(
        workers=0,
        release=(core.name,) if demand.idle and held else (),
        delete=tuple(one.name for one in others) if demand.idle else (),
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


def _surplus(known: Sequence[Slice], demand: Demand, use: int) -> tuple[str, ...]:
    """Return the slices that the spec does not need, without pods: waiting ones, then newest."""
    covered = sum(one.workers for one in known)
    held = sum(one.workers for one in known if one.reserved)
    names = []
    for one in sorted(known[1:], key=lambda one: (one.reserved, -one.index)):
        if covered - one.workers < demand.workers:
            continue
        if one.reserved and held - one.workers < use:
            continue  # its pods are still ending
        names.append(one.name)
        covered -= one.workers
        held -= one.workers if one.reserved else 0
    return tuple(names)


def _releases(known: Sequence[Slice], use: int) -> tuple[str, ...]:
    """Return the evicted slices that no pod needs any more."""
    held = sum(one.workers for one in known if one.reserved)
    names = []
    for one in reversed(known[1:]):
        if one.evicted and one.reserved and held - one.workers >= use:
            names.append(one.name)
            held -= one.workers
    return tuple(names)


def _started(known: Sequence[Slice], demand: Demand) -> tuple[str, ...]:
    """Return the slices to report as started: ready pods count for those reported before first."""
    usable = [one for one in known if one.usable]
    end = sum(one.workers for one in usable if one.started)
    names = []
    for one in (one for one in usable if not one.started):
        end += one.workers
        if demand.ready >= min(end, demand.workers):
            names.append(one.name)
    return tuple(names)


def _shortage(known: Sequence[Slice], workers: int, demand: Demand) -> str:
    why = next((one.reason for one in known if not one.usable and one.reason), "")
    text = f"{workers} of {demand.workers} workers are admitted"
    return f"{text}: {why}" if why else text


def _held_back(roles: Mapping[str, int], memory: int, demand: Demand) -> Iterator[str]:
    """Yield what the spec has come to ask for since the slices were asked for, for people."""
    later = "more only after the next suspension"
    for name, wanted in demand.roles.items():
        if roles.get(name, 0) < wanted:
            yield f"{roles.get(name, 0)} of {wanted} pods of {name} are admitted, {later}"
    if memory < demand.memory:
        yield f"a worker gets {in_mebibytes(memory)} of memory at most, {later}"
