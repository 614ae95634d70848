"""Rendezvous: the time at which a world is formed, its size, and the order of its nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from holdfast_master.policies.quantities import counted, verb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Allowed sizes of a world, in nodes."""

    minimum: int
    replicas: int
    maximum: int
    unit: int = 1

    def floor(self, nodes: int) -> int:
        """The largest multiple of the unit that is not above `nodes`."""
        unit = max(1, self.unit)
        return nodes // unit * unit

    @property
    def largest(self) -> int:
        """The largest world: replicas, bounded by the maximum, in whole units."""
        return self.floor(min(self.replicas, self.maximum))

    @property
    def smallest(self) -> int:
        """The smallest world: the minimum, rounded up to whole units; at least one unit."""
        unit = max(1, self.unit)
        return max(unit, -(-self.minimum // unit) * unit)

    def fit(self, nodes: int) -> int:
        """The largest world that so many nodes can form; 0 if none."""
        size = self.floor(min(nodes, self.largest))
        return size if size >= self.smallest else 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """The facts that the size of a new world depends on."""

    present: int
    """Candidates: nodes that could be in a world now."""
    bounds: Bounds
    recovering: bool
    """The last world was interrupted and has enough nodes left: it is not held up for others."""
    enough_since: float | None
    """Since when there have been enough nodes for the smallest world, s; None: only now."""
    join_window: float
    """How long a world that could still grow waits for more nodes, s."""
    warming: int = 0
    """Nodes that have joined and are not ready yet: they are waited for once more as long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """Form a world of this many nodes now."""

    size: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """Do not form a world yet."""

    reason: str
    until: float | None
    """When to decide again, s; None: when something changes."""
    below_minimum: bool


def decide(attendance: Attendance, now: float) -> Form | Wait:
    """Decide whether a world is formed now, and of what size."""
    bounds, present = attendance.bounds, attendance.present
    if bounds.largest < bounds.smallest:
        return Wait(
            f"replicas {bounds.replicas} and maxReplicas {bounds.maximum} leave no room for "
            f"minReplicas {bounds.minimum} in units of {bounds.unit}",
            until=None,
            below_minimum=True,
        )
    size = bounds.fit(present)
    if size == 0:
        least = counted(bounds.smallest, "node")
        text = f"{present} of at least {least} {verb(present, 'is', 'are')} ready"
        return Wait(text, until=None, below_minimum=True)
    if size == bounds.largest:
        wanted = "the wanted node is" if size == 1 else f"all {size} wanted nodes are"
        return Form(size, f"{wanted} ready")
    if attendance.recovering:
        return Form(size, f"goes on at once with {size} of {bounds.largest} wanted nodes")
    since = now if attendance.enough_since is None else attendance.enough_since
    warming = bounds.fit(present + attendance.warming) > size
    until = since + attendance.join_window * (2 if warming else 1)
    if now >= until:
        text = f"{size} of {bounds.largest} wanted nodes are ready and the join window is over"
        return Form(size, text)
    text = f"{present} of {bounds.largest} wanted nodes are ready; waits for more"
    return Wait(text, until=until, below_minimum=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that could be in the world."""

    node_rank: int
    agent_id: str
    local_world_size: int
    topology: tuple[tuple[str, str], ...] = ()
    """Labels in sorted order; nodes with equal labels stand together in a first world."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seat:
    """One place of the previous world, in rank order."""

    node_rank: int
    agent_id: str


def arrange(
    previous: Sequence[Seat],
    candidates: Iterable[Candidate],
    size: int,
    not_first: frozenset[int] = frozenset(),
) -> tuple[Candidate, ...]:
    """Choose and order the nodes of a world of `size`; the order of `candidates` does not matter.

    Survivors keep their order. At an unchanged size a newcomer takes a vacant place, its own node
    rank's first; otherwise newcomers stand at the end. Node ranks in `not_first` do not become
    the first while another can: the first node serves the store.
    """
    by_rank = {candidate.node_rank: candidate for candidate in candidates}
    kept = _survivors(previous, by_rank, size)
    taken = {candidate.node_rank for candidate in kept}
    newcomers = [by_rank[rank] for rank in sorted(by_rank) if rank not in taken]
    newcomers = newcomers[: size - len(kept)]
    if previous and len(previous) == len(kept) + len(newcomers):
        ordered = _fill(previous, kept, newcomers)
    else:
        newcomers.sort(key=lambda candidate: (candidate.topology, candidate.node_rank))
        ordered = [*kept, *newcomers]
    return able_first(ordered, not_first)


def _survivors(
    previous: Sequence[Seat], by_rank: dict[int, Candidate], size: int
) -> list[Candidate]:
    survivors = [
        by_rank[seat.node_rank]
        for seat in previous
        if seat.node_rank in by_rank and by_rank[seat.node_rank].agent_id == seat.agent_id
    ]
    stay = set(sorted(candidate.node_rank for candidate in survivors)[:size])
    return [candidate for candidate in survivors if candidate.node_rank in stay]


def _fill(
    previous: Sequence[Seat], kept: Sequence[Candidate], newcomers: Sequence[Candidate]
) -> list[Candidate]:
    by_rank = {candidate.node_rank: candidate for candidate in (*kept, *newcomers)}
    seats = [by_rank.pop(seat.node_rank, None) for seat in previous]
    rest = iter([by_rank[rank] for rank in sorted(by_rank)])
    return [next(rest) if seated is None else seated for seated in seats]


def able_first(ordered: Sequence[Candidate], not_first: Collection[int]) -> tuple[Candidate, ...]:
    """The nodes, begun with the first whose rank is not in `not_first`; as they are without one."""
    for place, candidate in enumerate(ordered):
        if candidate.node_rank not in not_first:
            return (candidate, *ordered[:place], *ordered[place + 1 :])
    return tuple(ordered)
