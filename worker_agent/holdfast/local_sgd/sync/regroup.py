"""Change of members, carried out: standings exchanged, anchors and momentum given, joiners filled.

Belongs here: what a rank does with the plan of `policies.roster`. Does not belong here: how a rank
learns of a change (`members`), and what the hooks of a framework do next (`elastic`).

All ranks of a new group say where they stand, make the same plan, and carry it out in one order.
Units go from rank to rank as bytes, several in one exchange, and are written only when all ranks of
the receiving replica have theirs. So a change that comes in between finds whole units, and makes
another plan.

A joiner is given every unit at the round that the survivors have it at, before units are done
again. It takes part in those without a weight, which is the same as to be given them afterwards.
With each unit it is given the donor's inner state, and from one replica the buffers: with moments
of its own, which are zeros, its first round would be a warm-up at the full learning rate.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.local_sgd.errors import RosterError
from holdfast.local_sgd.policies.roster import Plan, Transfer, UnitRounds, regroup_shards, torn
from holdfast.local_sgd.policies.switching import NOTHING_AGREED, Agreed
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.transfer_bytes import (
    bytes_of,
    count_of,
    fill,
    form_of,
    has_outer_state,
    pack,
    unpack,
)
from holdfast.local_sgd.sync.unit_sync import all_or_none

if TYPE_CHECKING:
    import torch

    from holdfast.local_sgd.sync.inner_state import TorchInnerState
    from holdfast.local_sgd.sync.units import Unit

BATCH: Final = 64 << 20
"""Bytes of weights that are on their way at one time."""
_AGREED: Final = tuple(one.name for one in dataclasses.fields(Agreed))
_OWN: Final = 6
"""Numbers of a row before those: new, with anchors, due, steps, form, ends."""
_HEAD: Final = _OWN + len(_AGREED)
"""Numbers of a row that are not of a unit."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica's report of itself when its members change."""

    is_new: bool
    """It has been in no group yet: a joiner, if others have been."""
    has_anchors: bool
    due: bool
    """It stands at a round's start."""
    steps: int
    """Of its inner optimizer."""
    ends: bool = False
    """It has no more data, and asks for its last round."""
    begun: frozenset[int] = frozenset()
    """Units whose next round it has begun and not finished."""
    agreed: Agreed = NOTHING_AGREED
    """Its knowledge of the interval, where replicas choose one."""
    form: int = 0
    """Of its units: replicas must have one."""
    rounds: tuple[int, ...] = ()
    """By unit."""
    outer: tuple[bool, ...] = ()
    """By unit: its outer optimizer keeps something."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """A replica after a change."""

    plan: Plan | None = None
    """None: nobody has anchors yet."""
    joined: bool = False
    """It was new, and has the others' state now."""
    behind: bool = False
    """It missed rounds: it goes on from the others' steps and position, which are here."""
    source: int = 0
    """Rank in the group of a replica at the newest round; where nobody has anchors all take its
    weights."""
    giving: ReplicaState
    """Of that replica, which gave its position too."""
    agreed: Agreed = NOTHING_AGREED
    """The newest of the interval that replicas have chosen; its steps are that replica's."""
    position: bytes = b""
    """State that its script carries: inner learning rates, scheduler, place in the data."""
    passed: bool = False
    """Others gave this replica the end of a round that it had not finished."""
    kept: float = 0.0
    """Where it passed: the share of its delta and steps that it goes on with."""


class Regroup:
    """One change, on one rank of the new group."""

    def __init__(
        self,
        units: Sequence[Unit],
        replicas: Sequence[int],
        groups: tuple[Group, Group],
        late_discount: float,
        *,
        before_write: Callable[[int], None] = lambda _: None,
        inner: TorchInnerState | None = None,
        in_step: bool = True,
    ) -> None:
        """Take the new group.

        Args:
            units: In the order that all replicas have.
            replicas: Their numbers, by rank.
            groups: The new sync group, and the ranks of this replica.
            late_discount: Factor of a delta for each round that others have made without it.
            before_write: Called with the number of a unit whose weights are to be written next.
            inner: What joiners get beside the units; None: nothing.
            in_step: Rounds end after the same steps on all replicas, so one that has missed some
                goes on from the others' step. By time each counts its own.
        """
        self._units, self._replicas = list(units), tuple(replicas)
        self._sync, self._own = groups
        self._me = self._replicas[self._sync.rank]
        self._late_discount, self._before_write = late_discount, before_write
        self._inner, self._in_step = inner, in_step
        self._sizes: list[float] = []
        """Bytes of each unit's weights, of the shard that has most: batches end alike on all."""

    def carry_out(self, mine: ReplicaState, position: Callable[[], bytes]) -> Regrouped:
        """Exchange standings, make the plan, and carry it out.

        Args:
            mine: Where this replica stands.
            position: Returns what a joiner needs beside the units, as bytes; asked of one replica
                that is at the newest round, and only if somebody takes it.

        Raises:
            SyncError: a rank is gone; the units are whole, and the next change makes another plan.
            RosterError: no plan fits.
        """
        rows = self._exchange(mine)
        old = [at for at, row in enumerate(rows) if not row.is_new]
        joins = mine.is_new and bool(old)
        giver = min(old, key=lambda at: (-sum(rows[at].rounds), rows[at].steps, at), default=0)
        giving = rows[giver]
        takes = [row.is_new or self._is_behind(row, giving) for row in rows]
        told = b""
        if old and any(takes):
            told = all_or_none(self._own, lambda: self._told_by(giver, position))
        found = Regrouped(
            joined=joins,
            behind=self._is_behind(mine, giving),
            source=giver,
            giving=giving,
            agreed=_newest_agreed([rows[at].agreed for at in old], giving.agreed),
            position=told,
        )
        if not any(row.has_anchors for row in rows):
            self._give_inner(giver, rows, ())
            return found
        plan = self._plan(rows)
        before = min((unit.round for unit in self._units), default=0)
        kept = self._transfers(plan, rows)
        self._give_inner(giver, rows, plan.joins)
        after = min((unit.round for unit in self._units), default=0)
        passed = not joins and after > before
        return dataclasses.replace(found, plan=plan, passed=passed, kept=kept)

    def _is_behind(self, one: ReplicaState, giving: ReplicaState) -> bool:
        """Return True if a replica has made fewer steps than one that is at the newest round."""
        return self._in_step and one.has_anchors and one.steps < giving.steps

    def _exchange(self, mine: ReplicaState) -> list[ReplicaState]:
        """Return the reports of all ranks of the group."""
        units = self._units
        sent: list[float] = [
            *(mine.is_new, mine.has_anchors, mine.due, mine.steps, form_of(units), mine.ends),
            *dataclasses.astuple(mine.agreed),
            *(unit.round for unit in units),
            *(number in mine.begun for number in range(len(units))),
            *(has_outer_state(unit) for unit in units),
        ]
        told = all_or_none(self._own, lambda: self._sync.gather_scalars(sent))
        mine_bytes = [float(sum(one.nbytes for one in unit.tensors())) for unit in units]
        self._sizes = self._own.max_scalars(mine_bytes)
        rows = [_row(one, len(units)) for one in told]
        for replica, row in zip(self._replicas, rows, strict=True):
            if row.form != rows[0].form:
                raise RosterError(
                    f"replicas {self._replicas[0]} and {replica} have units of unlike names, "
                    "shapes or dtypes: run the same model on the same number of ranks everywhere"
                )
        return rows

    def _plan(self, rows: Sequence[ReplicaState]) -> Plan:
        """Return the plan of this shard's group; the shards of a replica exchange their rows."""
        flat = [float(one) for row in rows for one in (*row.rounds, *_flags(row))]
        shards = self._own.gather_scalars(flat)
        names = list(enumerate(self._replicas))
        stays = [at for at, row in enumerate(rows) if row.has_anchors]
        wide = 2 * len(self._units)
        standings = [
            [_standing(self._replicas[at], one[at * wide : (at + 1) * wide]) for at in stays]
            for one in shards
        ]
        joiners = [replica for at, replica in names if at not in stays]
        plans = regroup_shards(standings, joiners)
        if units := torn(plans):
            raise RosterError(
                f"units {units}: the shards of a replica have them at unlike rounds, which votes "
                "exclude; load the newest checkpoint"
            )
        return plans[self._own.rank]

    def _transfers(self, plan: Plan, rows: Sequence[ReplicaState]) -> float:
        """Give and take units in the plan's order; return the share of the delta that is kept."""
        kept = 0.0
        newest = _newest(rows)
        carries = {unit for replica, unit in plan.carries if replica == self._me}
        for part in (plan.transfers, plan.joins):
            for batch in self._batches(part):
                parcels = {one.unit: bytes_of(self._units[one.unit]) for one in self._own_of(batch)}
                sizes = [
                    self._size_of(one.unit, outer_state=newest[one.unit][1])
                    if self._me in one.receivers
                    else 0
                    for one in batch
                ]
                for one, parcel in self._deliver(batch, parcels, sizes):
                    rounds = newest[one.unit][0]
                    share = self._take(one.unit, parcel, rounds, carries=one.unit in carries)
                    kept = max(kept, share)
        return kept

    def _give_inner(
        self, giver: int, rows: Sequence[ReplicaState], joins: Sequence[Transfer]
    ) -> None:
        """Give joiners inner state, unit by unit as the units, and the giver's buffers."""
        new = [at for at, row in enumerate(rows) if row.is_new]
        if self._inner is None or not new or len(new) == len(rows):
            return
        units, replicas = len(self._units), self._replicas
        come = tuple(replicas[at] for at in new)
        of_units = [one for one in joins if set(one.receivers) <= set(come)]
        of_units = of_units or [Transfer(unit, replicas[giver], come) for unit in range(units)]
        for batch in self._batches([*of_units, Transfer(units, replicas[giver], come)]):
            parcels = {one.unit: pack(self._inner.give(one.unit)) for one in self._own_of(batch)}
            mine = [
                float(parcels[one.unit].numel()) if one.donor == self._me else 0.0 for one in batch
            ]
            sizes = all_or_none(self._own, functools.partial(self._sync.max_scalars, mine))
            for one, parcel in self._deliver(batch, parcels, [int(size) for size in sizes]):
                self._inner.take(one.unit, unpack(parcel))

    def _own_of(self, batch: Sequence[Transfer]) -> list[Transfer]:
        """Return the transfers that this replica gives."""
        return [one for one in batch if one.donor == self._me]

    def _batches(self, transfers: Sequence[Transfer]) -> Iterator[list[Transfer]]:
        """Cut transfers, alike on all ranks: what is on its way is in memory twice."""
        batch: list[Transfer] = []
        size = 0.0
        for one in transfers:
            batch.append(one)
            size += self._sizes[one.unit] if one.unit < len(self._sizes) else 0.0
            if size >= BATCH:
                yield batch
                batch, size = [], 0.0
        if batch:
            yield batch

    def _deliver(
        self,
        batch: Sequence[Transfer],
        parcels: Mapping[int, torch.Tensor],
        sizes: Sequence[int],
    ) -> list[tuple[Transfer, torch.Tensor]]:
        """Return the transfers to this rank of a batch, which all ranks carry out together.

        Args:
            batch: Who gives what to whom.
            parcels: Bytes of what this rank gives, by unit.
            sizes: Bytes of each transfer that this rank is given.
        """
        import torch

        none = torch.empty(0, dtype=torch.uint8)
        go: list[list[torch.Tensor]] = [[none] for _ in self._replicas]
        come: list[list[tuple[Transfer, int]]] = [[] for _ in self._replicas]
        for one, size in zip(batch, sizes, strict=True):
            if one.donor == self._me:
                for receiver in one.receivers:
                    go[self._replicas.index(receiver)].append(parcels[one.unit])
            elif self._me in one.receivers:
                come[self._replicas.index(one.donor)].append((one, size))
        parts = [torch.cat(one) for one in go]
        counts = [sum(size for _, size in one) for one in come], [one.numel() for one in parts]
        received = self._placed(torch.empty(sum(counts[0]), dtype=torch.uint8))
        sent = self._placed(torch.cat(parts))
        all_or_none(self._own, lambda: self._sync.begin_deliver(received, sent, counts).wait())
        flat = [one for several in come for one in several]
        pieces = received.split([size for _, size in flat])
        return [(one, piece) for (one, _), piece in zip(flat, pieces, strict=True)]

    def _size_of(self, number: int, *, outer_state: bool) -> int:
        unit = self._units[number]
        if not unit.has_anchors:
            unit.take_anchors()
        return count_of(unit, outer_state=outer_state)

    def _take(self, number: int, parcel: torch.Tensor, rounds: int, *, carries: bool) -> float:
        """Write a unit; return the share of this replica's delta that it goes on with."""
        import torch

        unit = self._units[number]
        missed, factor = rounds - unit.round, 0.0
        with torch.no_grad():
            weights = unit.tensors()
            deltas = [a.to(w.device) - w for a, w in zip(unit.anchors.values, weights, strict=True)]
            fill(unit, parcel.to("cpu"))
            self._before_write(number)
            unit.anchors.write_weights(weights)
            if carries:
                factor = self._late_discount**missed
                for weight, delta in zip(weights, deltas, strict=True):
                    weight.sub_(delta, alpha=factor)
        unit.round = rounds
        return factor

    def _told_by(self, giver: int, position: Callable[[], bytes]) -> bytes:
        """Return the state that the giver's script carries; all ranks get it."""
        import torch

        given = position() if self._sync.rank == giver else b""
        size = self._placed(torch.tensor([len(given)]))
        self._sync.begin_broadcast(size, giver).wait()
        parcel = torch.zeros(int(size.item()), dtype=torch.uint8)
        if given:
            parcel = torch.frombuffer(bytearray(given), dtype=torch.uint8)
        parcel = self._placed(parcel)
        self._sync.begin_broadcast(parcel, giver).wait()
        return bytes(parcel.tolist())

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor where the group's backend takes it."""
        return tensor.to(self._sync.device)


def _row(told: Sequence[float], units: int) -> ReplicaState:
    rounds, begun, outer = (
        told[_HEAD + part * units : _HEAD + (part + 1) * units] for part in range(3)
    )
    return ReplicaState(
        is_new=bool(told[0]),
        has_anchors=bool(told[1]),
        due=bool(told[2]),
        steps=int(told[3]),
        form=int(told[4]),
        ends=bool(told[5]),
        begun=frozenset(number for number, one in enumerate(begun) if one),
        agreed=Agreed(**dict(zip(_AGREED, map(int, told[_OWN:_HEAD]), strict=True))),
        rounds=tuple(map(int, rounds)),
        outer=tuple(map(bool, outer)),
    )


def _newest_agreed(old: Sequence[Agreed], giving: Agreed) -> Agreed:
    """Return the knowledge of the replica that has chosen in the newest round.

    Its steps since are those of the replica whose steps joiners get: none, if that one has missed
    the round and is given it in this change.
    """
    newest = max(old, key=lambda one: one.round, default=NOTHING_AGREED)
    return dataclasses.replace(newest, since=giving.since if giving.round == newest.round else 0)


def _newest(rows: Sequence[ReplicaState]) -> list[tuple[int, bool]]:
    """Return each unit's newest round, and if its outer optimizer keeps something there."""
    stays = [row for row in rows if row.has_anchors]
    return [
        max((row.rounds[unit], row.outer[unit]) for row in stays)
        for unit in range(len(stays[0].rounds))
    ]


def _flags(row: ReplicaState) -> list[bool]:
    return [number in row.begun for number in range(len(row.rounds))]


def _standing(replica: int, told: Sequence[float]) -> UnitRounds:
    half = len(told) // 2
    begun = frozenset(number for number, one in enumerate(told[half:]) if one)
    return UnitRounds(replica, tuple(map(int, told[:half])), begun)
