"""Roster of a sync group after a change of its members: which units are given, by whom, to whom.

Belongs here: the plan that brings survivors and joiners of one sync group to one round. Does not
belong here: who lives, which the job's master decides, and the transfers.

A change may come at any point of a sync. A unit is atomic on each rank, so a survivor has it at
round r, or r + 1. Three facts bear the plan:

1. A reduction that has ended on one rank has had the deltas of all its members. So if one survivor
   has a unit at r + 1, the deltas of all who had *begun* it are in that anchor. They take anchor
   and momentum from a survivor that has them, and drop their deltas: counted once. A replica that
   others had put out of the round is in doubt, and drops its delta too.
2. If no survivor has it at r + 1, nobody's delta counts, also where a dead replica had the result.
   The survivors begin again: none is lost.
3. A survivor that had not begun the unit was not in that round. It carries its delta on.

All replicas make the plan from the same standings, and so the same plan. The order is: transfers,
then the joiners, then the units to do again, in which joiners have no weight. A change that comes
while a plan is carried out makes another plan from the standings of that moment.

There is a sync group for each shard, and a crash may leave one behind another. `regroup_shards`
makes the plans of all of them, which lead to one round. Where a unit is *torn*, at r + 1 in one
shard and to be done again in another, a replica no longer has all of its delta. Its sync uses the
reports of the first try again (`weights.Report`), and no new norms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from holdfast.local_sgd.errors import RosterError


@dataclasses.dataclass(frozen=True, slots=True)
class UnitRounds:
    """A survivor's rounds when its members change."""

    replica: int
    rounds: tuple[int, ...]
    """Outer steps of each unit, in the order of the units; the same order on all replicas."""
    begun: frozenset[int] = frozenset()
    """Units, by their number, whose next round it has begun and not finished."""


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """Anchor and momentum of one unit, from one replica to others."""

    unit: int
    donor: int
    receivers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a sync group before its members train on."""

    round: int
    """Of all units, when the plan has been carried out."""
    transfers: tuple[Transfer, ...] = ()
    """To survivors, first."""
    again: tuple[int, ...] = ()
    """Units whose round the survivors begin once more, in this order."""
    carries: tuple[tuple[int, int], ...] = ()
    """(replica, unit) whose delta is not in the anchor that it is given: it goes on from that with
    it, discounted. Others that are given one drop theirs: θ := A."""
    joins: tuple[Transfer, ...] = ()
    """To joiners, last."""
    reason: str


def regroup_shards(
    survivors: Sequence[Sequence[UnitRounds]], joiners: Sequence[int] = ()
) -> tuple[Plan, ...]:
    """Return the plan of each shard's sync group; all lead to one round.

    Args:
        survivors: Of each shard, the standings of the same replicas.
        joiners: Replicas without a state of their own, in any order.

    Raises:
        RosterError: as `regroup`, or the shards have different survivors.
    """
    names = [sorted(one.replica for one in shard) for shard in survivors]
    if any(one != names[0] for one in names):
        raise RosterError(
            f"survivors by shard: {names}; a replica that has lost a rank is no survivor, leave it "
            "out of all shards"
        )
    target = max(regroup(shard, joiners).round for shard in survivors)
    return tuple(regroup(shard, joiners, at_least=target) for shard in survivors)


def torn(plans: Sequence[Plan]) -> tuple[int, ...]:
    """Return the units that some shards do again and others do not."""
    some = {unit for plan in plans for unit in plan.again}
    return tuple(sorted(unit for unit in some if any(unit not in one.again for one in plans)))


def regroup(
    survivors: Sequence[UnitRounds], joiners: Sequence[int] = (), *, at_least: int = 0
) -> Plan:
    """Return the plan of one sync group after a change of members.

    Args:
        survivors: Those who were members before, in any order.
        joiners: Replicas without a state of their own, in any order.
        at_least: Round that other shards' groups reach; this one does too.

    Raises:
        RosterError: nobody has the state, or a standing does not fit to the others.
    """
    standings = sorted(survivors, key=lambda one: one.replica)
    _check(standings, joiners)
    units = len(standings[0].rounds)
    newest = [max(one.rounds[unit] for one in standings) for unit in range(units)]
    target = max(newest, default=0)
    if any(one.begun and _is_open(one, newest, target) for one in standings):
        target += 1
    target = max(target, at_least)
    again = tuple(unit for unit in range(units) if newest[unit] < target)
    if any(newest[unit] < target - 1 for unit in again):
        raise RosterError(
            f"rounds={newest} of the units on all survivors: they are more than one round apart, "
            "which no sync leaves behind; load the newest checkpoint"
        )
    behind = [
        (one, unit) for unit in range(units) for one in standings if one.rounds[unit] < newest[unit]
    ]
    return Plan(
        round=target,
        transfers=_transfers(standings, newest),
        again=again,
        carries=tuple((one.replica, unit) for one, unit in behind if unit not in one.begun),
        joins=_joins([one.replica for one in standings], sorted(joiners), units),
        reason=_reason(standings, behind, again, joiners, target),
    )


def _is_open(one: UnitRounds, newest: Sequence[int], target: int) -> bool:
    """Return True if it had begun the round after the target, which nobody has finished."""
    return any(one.rounds[unit] == newest[unit] == target for unit in one.begun)


def _transfers(standings: Sequence[UnitRounds], newest: Sequence[int]) -> tuple[Transfer, ...]:
    """Return the transfers to the survivors behind; donors take turns."""
    transfers: list[Transfer] = []
    for unit, most in enumerate(newest):
        donors = [one.replica for one in standings if one.rounds[unit] == most]
        receivers = [one.replica for one in standings if one.rounds[unit] < most]
        if receivers:
            transfers.append(Transfer(unit, donors[len(transfers) % len(donors)], tuple(receivers)))
    return tuple(transfers)


def _joins(donors: Sequence[int], joiners: Sequence[int], units: int) -> tuple[Transfer, ...]:
    """Return the transfers to joiners: every survivor gives about the same number."""
    return tuple(
        Transfer(unit, donors[(at * units + unit) % len(donors)], (joiner,))
        for at, joiner in enumerate(joiners)
        for unit in range(units)
    )


def _check(standings: Sequence[UnitRounds], joiners: Sequence[int]) -> None:
    if not standings:
        raise RosterError(
            "survivors=(): no replica has anchors and momentum; load the newest checkpoint"
        )
    names = [*(one.replica for one in standings), *joiners]
    if len(set(names)) < len(names):
        raise RosterError(
            f"replicas {sorted(names)}: one is named twice; a replica that comes back is a joiner, "
            "and no survivor"
        )
    counts = {one.replica: len(one.rounds) for one in standings}
    if len(set(counts.values())) > 1:
        raise RosterError(
            f"units by replica: {counts}; all replicas must have the same units, in one order"
        )
    for one in standings:
        if wrong := [unit for unit in one.begun if not 0 <= unit < len(one.rounds)]:
            raise RosterError(
                f"begun={wrong} of replica {one.replica}: it has units 0 to {len(one.rounds) - 1}"
            )


def _reason(
    standings: Sequence[UnitRounds],
    behind: Sequence[tuple[UnitRounds, int]],
    again: Sequence[int],
    joiners: Sequence[int],
    target: int,
) -> str:
    """Return the plan in words."""
    said = [f"{len(standings)} survivors"]
    if behind:
        given = len({unit for _, unit in behind})
        said.append(f"{given} units given to {len({one.replica for one, _ in behind})} of them")
    if again:
        said.append(f"{len(again)} units done again")
    if joiners:
        said.append(f"{len(joiners)} joiners")
    return f"{', '.join(said)}: all at round {target}"
