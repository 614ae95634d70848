"""Replicas of a job under local SGD: which nodes make one up, and which of them synchronise.

A replica is the unit of membership: its nodes have a world of their own, and a loss in it restarts
it alone. Its number is never given again, so others see by it that a member was replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from holdfast_master.policies.hang_response import HangKind, HangVerdict
from holdfast_master.policies.quantities import counted, verb
from holdfast_master.policies.rendezvous import Candidate, able_first
from holdfast_wire.messages import OuterRoster


@dataclasses.dataclass(frozen=True, slots=True)
class SeatedReplica:
    """Nodes of one replica, in rank order."""

    number: int
    members: tuple[Candidate, ...]
    round: int = 0
    """In which its processes were started; 0: they are to be."""


def seat(
    going: Iterable[SeatedReplica],
    free: Iterable[Candidate],
    *,
    nodes: int,
    size: int,
    last: int,
    before: Mapping[int, int] | None = None,
    not_first: Collection[int] = (),
) -> tuple[SeatedReplica, ...]:
    """The replicas of a world, by number: those that go on, then new ones.

    Args:
        going: Replicas whose processes all run and may go on.
        free: Other nodes that could be in the world; their order does not matter.
        nodes: Of a replica.
        size: Most nodes of the world. Where fewer fit, the oldest replicas go on.
        last: Greatest number that was ever given.
        before: Node rank to the replica that it was in: what was together stays together, since
            nodes have each other's checkpoints in memory.
        not_first: Node ranks that cannot serve a store: they do not become a replica's first node
            while another can.
    """
    most = size // nodes
    kept = sorted(going, key=lambda replica: replica.number)[:most]
    known = before or {}
    rest = sorted(free, key=lambda one: (one.topology, known.get(one.node_rank, 0), one.node_rank))
    made: list[SeatedReplica] = []
    for start in range(0, len(rest) - nodes + 1, nodes):
        if len(kept) + len(made) == most:
            break
        members = able_first(rest[start : start + nodes], not_first)
        made.append(SeatedReplica(last + 1 + len(made), members))
    return (*kept, *made)


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Knowledge of a replica of the running world."""

    number: int
    intact: bool
    """All its processes run, or are being started."""
    ready: bool
    """All its ranks wait to be named, or were named already."""


@dataclasses.dataclass(frozen=True, slots=True)
class NewRoster:
    """Replicas that synchronise from the next epoch on."""

    replicas: tuple[int, ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class SameRoster:
    """No other epoch is needed now."""

    until: float | None = None
    """When to decide again, s; None: when something changes."""


def roster(
    standings: Sequence[ReplicaStatus],
    now_in: Sequence[int],
    now: float,
    *,
    ready_since: float | None,
    window: float,
    again: str = "",
) -> NewRoster | SameRoster:
    """Decide whether other replicas are to synchronise.

    Args:
        standings: Of the replicas of the running world, by number.
        now_in: Replicas of the newest roster; empty: there was none.
        now: Time, s.
        ready_since: Time since which a replica has been ready while none goes on, s.
        window: How long the first waits for the others, s: replicas that begin together begin from
            the same weights, and a later one has to be given them.
        again: Reason why the members of the newest roster are to meet anew; empty: there is none.

    A replica that is lost is out at once, since others may wait for it in a sync.
    """
    fit = [one.number for one in standings if one.intact and one.ready]
    if not fit or (fit == list(now_in) and not again):
        return SameRoster()
    going = [number for number in now_in if number in fit]
    waits = any(one.intact and not one.ready for one in standings)
    if not going and waits:
        until = (now if ready_since is None else ready_since) + window
        if now < until:
            return SameRoster(until)
    return NewRoster(tuple(fit), _why(fit, now_in, again))


def memberships(
    replicas: Sequence[int], known: Mapping[int, int], epoch: int, *, anew: bool = False
) -> tuple[int, ...]:
    """The epoch since which each replica is in all rosters, in their order.

    known: members of the roster before, to their epochs. anew: all of them leave the groups that
    they have, and meet in another one.
    """
    return tuple(epoch if anew else known.get(number, epoch) for number in replicas)


def follows(before: OuterRoster, after: OuterRoster) -> bool:
    """Whether ranks that were told one roster can be told another one, or the same again.

    A newer one, and who is in since no later epoch than theirs is in theirs, too.
    """
    return after == before or (
        after.epoch > before.epoch
        and all(
            since > before.epoch or number in before.replicas
            for number, since in zip(after.replicas, after.since, strict=True)
        )
    )


def _why(fit: Sequence[int], now_in: Sequence[int], again: str) -> str:
    lost = [number for number in now_in if number not in fit]
    come = [number for number in fit if number not in now_in]
    parts = [f"{_named(lost)} {verb(len(lost), 'is', 'are')} out"] if lost else []
    parts += [f"{_named(come)} {verb(len(come), 'comes', 'come')} in"] if come else []
    what = " and ".join(parts) or again
    return f"{what}: {counted(len(fit), 'replica')}"


def _named(numbers: Sequence[int]) -> str:
    return f"{verb(len(numbers), 'replica', 'replicas')} {', '.join(map(str, numbers))}"


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaPace:
    """Progress of a replica's slowest rank."""

    number: int
    step: int
    still: float
    """Time since a rank of it completed a step, s."""
    working: bool = False
    """A rank of it does work that has a step in it stand still: a checkpoint, an evaluation."""


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenReplica:
    """A replica that is to be restarted since others wait for it."""

    number: int
    """0: all are, since nobody can tell which one."""
    reason: str


def frozen(paces: Sequence[ReplicaPace], limit: float) -> FrozenReplica | None:
    """The replica that keeps others waiting; None: none does, or it cannot be told.

    One that is behind and stands still, while the others stand still at a later step: they wait in
    a sync. `limit`: the time for which all must have stood still, s. A replica that computes a long
    step is no different, so the limit is the one of hangs, learned from the job's own steps.
    """
    if len(paces) < 2 or any(one.still < limit for one in paces):
        return None
    last = min(paces, key=lambda one: one.step)
    others = [one for one in paces if one is not last]
    ahead = min(one.step for one in others)
    if last.working or last.step >= ahead:
        return None
    return FrozenReplica(
        last.number,
        f"replica {last.number} has stood still at step {last.step} for {last.still:.0f} s, and "
        f"the others wait for it at step {ahead}",
    )


_BY_ITSELF: Final = frozenset(
    {
        HangKind.PROCESS_GONE,
        HangKind.UNINTERRUPTIBLE,
        HangKind.STOPPED,
        HangKind.NATIVE_GIL,
        HangKind.STORAGE,
        HangKind.DATA_LOADER,
        HangKind.LOCK,
    }
)
"""Causes that lie within a replica: who waits for another one in a sync shows none of them."""
_NO_START: Final = frozenset({HangKind.PROCESS_GONE, HangKind.STOPPED})
"""Those that no start has: until its first step a replica reads data, imports and compiles."""


def stuck_by_itself(
    verdicts: Mapping[int, HangVerdict], starting: Collection[int] = ()
) -> list[FrozenReplica]:
    """The replicas whose ranks show why they stand still, by number; not all of them.

    Where all would be out, nobody is: then the cause is not one replica's, such as a storage that
    all wait for. starting: replicas of which only a stopped or lost process counts: they have not
    completed a first step, or others have not waited for long.
    """
    found = [
        FrozenReplica(number, f"replica {number} keeps the others waiting: {one.reason}")
        for number, one in sorted(verdicts.items())
        if one.kind in (_NO_START if number in starting else _BY_ITSELF)
    ]
    return found if len(found) < len(verdicts) else []


def never_started(
    paces: Sequence[ReplicaPace], starting: Sequence[int], limit: float
) -> list[FrozenReplica]:
    """The replicas without a first step for which all others have waited too long.

    limit: allowed time until a first step, s. The wait counts, since a replica that begins
    meanwhile keeps nobody waiting.
    """
    if not paces or any(one.still < limit or one.working for one in paces):
        return []
    still = min(one.still for one in paces)
    text = f"has completed no first step, and the others have stood still for {still:.0f} s"
    return [FrozenReplica(number, f"replica {number} {text}") for number in starting]


def all_still(paces: Sequence[ReplicaPace], limit: float) -> FrozenReplica | None:
    """Return that all replicas are to be restarted; None: one of them makes progress, or works.

    `limit`: the time for which none has completed a step, s. Where all are at one step, one of them
    may be frozen within a sync: nothing tells which.
    """
    if any(one.still < limit or one.working for one in paces):
        return None
    still = min(one.still for one in paces)
    word = "the replica has" if len(paces) == 1 else f"all {len(paces)} replicas have"
    return FrozenReplica(0, f"{word} stood still for {still:.0f} s")
