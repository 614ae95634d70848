"""The cause of a hang: which ranks are odd, what they do, what helps.

Three rules bear the verdict. A rank that is stuck by itself is odd, whatever the others do. A rank
that only does something else is odd where it is behind: the sequence number of its newest
collective is the lowest of the group, while it does not wait for its peers. Without the evidence of
every rank nobody is compared, because the silent rank may be the odd one. The flight recorder's
state of a collective is never used: on gloo it says nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast_master.policies.hang_response import (
    HangKind,
    HangVerdict,
    OddRank,
    Remedy,
    comes_again,
    remedy_of,
)
from holdfast_master.policies.quantities import verb
from holdfast_master.policies.rank_activity import (
    BACKWARD,
    SELF_EVIDENT,
    WAITS_FOR_PEERS,
    Observation,
    RankActivity,
    observe,
    uses_device,
)
from holdfast_wire.messages import GroupTail, RankEvidence

_KINDS = {
    RankActivity.GONE: HangKind.PROCESS_GONE,
    RankActivity.UNINTERRUPTIBLE: HangKind.UNINTERRUPTIBLE,
    RankActivity.STOPPED: HangKind.STOPPED,
    RankActivity.NATIVE_GIL: HangKind.NATIVE_GIL,
    RankActivity.DATA_LOADER: HangKind.DATA_LOADER,
    RankActivity.STORAGE: HangKind.STORAGE,
    RankActivity.PIPE: HangKind.PIPE,
    RankActivity.OVER: HangKind.OVER,
    RankActivity.COMPILATION: HangKind.COMPILATION,
    RankActivity.LOOP: HangKind.PYTHON_LOOP,
    RankActivity.LOCK: HangKind.LOCK,
    RankActivity.UNCLEAR: HangKind.ABSENT,
    # Odd by its stack alone: it waits where the others do not.
    RankActivity.PEERS: HangKind.ABSENT,
    RankActivity.INIT: HangKind.ABSENT,
}
_ORDER = {kind: at for at, kind in enumerate(HangKind)}
_ADVICE = {
    HangKind.PROCESS_GONE: "its agent should have reported that",
    HangKind.UNINTERRUPTIBLE: "SIGKILL may not end it: the job can only leave its node",
    HangKind.MISMATCHED_COLLECTIVE: "the script takes another path there, and may do so again",
    HangKind.OVER: "Holdfast waits for it as torchrun does: end its threads, or make them daemons",
    HangKind.COMPILATION: "a higher spec.health.hang.firstStepSeconds allows it more time",
}
_CRASHED = "others wait for it: an exception may have ended its script while a thread lives on"
"""Advice where a script is over too early."""
_ALONE_TOO = frozenset({HangKind.STORAGE, HangKind.PIPE})
"""Of those the ones for which it is so in a world of one rank, too."""
_MOST_NAMED = 8
"""Ranks that a sentence describes one by one."""
_MOST_PATTERNS = 200
"""Distinct positions that are compared in pairs; more say that each rank is somewhere else."""
_UNEVEN = frozenset(
    {"scatter", "all_to_all", "all_to_all_single", "all_to_all_v_single", "all_gather_v"}
    | {"reduce_scatter_v", "_broadcast_oop", "_reduce_oop"}
)
"""Operations whose inputs differ from rank to rank in a right program."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """The evidence of all ranks, compared."""

    size: int
    seen: Mapping[int, Observation]
    """By rank, in ascending order."""
    tails: Mapping[int, Mapping[str, GroupTail]]
    """Newest collectives by rank and group, of the ranks whose recorder answered."""
    members: Mapping[str, frozenset[int]]
    """Ranks of each group, as far as somebody knows them."""
    silent: tuple[int, ...]
    ended: frozenset[int]
    """Ranks whose process has ended well."""
    on_device: bool
    """True: collectives work on a device, which the ranks wait for in many ways."""

    @property
    def complete(self) -> bool:
        """True: every rank gave evidence."""
        return not self.silent

    @property
    def numbered(self) -> bool:
        """True: a recorder has seen collectives, so numbers tell who is behind."""
        return any(self.tails.values())


def classify(
    evidence: Iterable[RankEvidence], *, world_size: int, ended: Iterable[int] = ()
) -> HangVerdict:
    """The cause of a hang, from the evidence of each rank that has any.

    ended: ranks whose process has ended well: they give no evidence, and are not silent.
    """
    world = _world(evidence, world_size, frozenset(ended))
    odd = _doing(world, SELF_EVIDENT) | _mismatched(world)
    odd |= {rank: one for rank, one in _behind(world).items() if rank not in odd}
    if not odd and world.complete:
        odd = _crossed(world) or _parted(world) or _left(world) or _apart(world) or _busy(world)
    if odd:
        return _verdict(world, odd)
    return _none_accused(world)


def _world(evidence: Iterable[RankEvidence], world_size: int, ended: frozenset[int]) -> _World:
    ranked = {item.rank: item for item in sorted(evidence, key=lambda item: (item.rank, item.pid))}
    items = {rank: item for rank, item in ranked.items() if rank < world_size and rank not in ended}
    on_device = any(uses_device(one.operation) for item in items.values() for one in item.groups)
    seen = {rank: observe(item, on_device=on_device) for rank, item in items.items()}
    members = _members(items, world_size)
    known = {rank for rank, one in seen.items() if one.activity is not RankActivity.UNKNOWN}
    return _World(
        size=world_size,
        seen=seen,
        tails={
            rank: {tail.group: tail for tail in item.groups}
            for rank, item in items.items()
            if item.server_answered
        },
        members={group: members[group] for group in sorted(members)},
        silent=tuple([rank for rank in range(world_size) if rank not in known | ended]),
        ended=ended,
        on_device=on_device,
    )


def _members(items: Mapping[int, RankEvidence], world_size: int) -> dict[str, frozenset[int]]:
    """The known ranks of each group: those that have used it, and the longest list."""
    users: defaultdict[str, set[int]] = defaultdict(set)
    lists: dict[str, tuple[int, ...]] = {}
    for rank, item in items.items():
        for tail in item.groups:
            users[tail.group].add(rank)
            # Every rank lists the same ones: to read all lists would be quadratic.
            lists[tail.group] = max(lists.get(tail.group, ()), tail.ranks, key=len)
    return {
        group: frozenset(ranks.union(one for one in lists[group] if one < world_size))
        for group, ranks in users.items()
    }


def _doing(world: _World, activities: Collection[RankActivity]) -> dict[int, OddRank]:
    """The ranks with one of these activities."""
    mine = (rank for rank, one in world.seen.items() if one.activity in activities)
    return {rank: _odd(world, rank) for rank in mine}


def _odd(world: _World, rank: int, missed: str = "") -> OddRank:
    one = world.seen[rank]
    text = f"{missed}; it {one.text}" if missed else one.text
    return OddRank(rank, _KINDS[one.activity], text)


def _mismatched(world: _World) -> dict[int, OddRank]:
    """The ranks whose collective differs from the others' of the same number and group.

    The minority is odd. With equal parts all are, if nobody's evidence is missing.
    """
    odd: dict[int, OddRank] = {}
    for group, members in world.members.items():
        for number, ranks in sorted(_numbers(world, group, members).items()):
            signatures = {rank: _signature(world.tails[rank][group]) for rank in ranks}
            (usual, count), *others = Counter(signatures.values()).most_common()
            if not others:
                continue
            # The silent ranks may be the majority.
            if not world.complete and 2 * count <= world.size:
                continue
            of = f"collective {number} of group {group}"
            for rank, own in signatures.items():
                if own != usual or 2 * count <= len(ranks):
                    text = f"issued {own} as {of}; {count} of {len(ranks)} issued {usual}"
                    odd[rank] = OddRank(rank, HangKind.MISMATCHED_COLLECTIVE, text)
    return odd


def _numbers(world: _World, group: str, members: Iterable[int]) -> dict[int, list[int]]:
    """The ranks whose newest collective of a group has the same number, by the number."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for rank in sorted(members):
        tail = world.tails.get(rank, {}).get(group)
        if tail is not None:
            found[tail.sequence].append(rank)
    return found


def _signature(tail: GroupTail) -> str:
    name = tail.operation.partition(":")[2] or tail.operation
    return tail.operation if name in _UNEVEN else f"{tail.operation} {tail.sizes} {tail.dtypes}"


def _behind(world: _World) -> dict[int, OddRank]:
    """The ranks that have not entered a collective that others have, and do not wait.

    Of those the ones with the lowest number: on a device, a rank that waits for one of them looks
    the same.
    """
    odd: dict[int, OddRank] = {}
    if not world.complete:
        return odd
    for group, members in world.members.items():
        numbers = {rank: _number(world, rank, group) for rank in sorted(members)}
        known = {rank: number for rank, number in numbers.items() if number is not None}
        newest = max(known.values(), default=0)
        late = {
            rank: number
            for rank, number in known.items()
            if number < newest and world.seen[rank].activity not in WAITS_FOR_PEERS
        }
        if late:
            lowest = min(late.values())
            text = _missed(world, group, known, lowest)
            for rank in [rank for rank, number in late.items() if number == lowest]:
                odd.setdefault(rank, _odd(world, rank, text))
    return odd


def _number(world: _World, rank: int, group: str) -> int | None:
    """The number of a rank's newest collective of a group; None: it is not known.

    A recorder that has nothing at all has seen no collective. One that has something may have
    dropped a group's entries for newer ones of other groups.
    """
    tails = world.tails.get(rank)
    if tails is None:
        return None
    if not tails:
        return 0
    return tails[group].sequence if group in tails else None


def _missed(world: _World, group: str, known: Mapping[int, int], lowest: int) -> str:
    ahead = [rank for rank, number in known.items() if number > lowest]
    tail = min([world.tails[rank][group] for rank in ahead], key=lambda tail: tail.sequence)
    return (
        f"is at collective {lowest} of group {group}, {_named(ahead)} at {tail.sequence} or later "
        f"({tail.operation})"
    )


def _crossed(world: _World) -> dict[int, OddRank]:
    """Return ranks that wait for each other in different groups.

    Each is ahead of the other in one group: they issued their collectives in different orders.
    """
    positions: defaultdict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for rank, tails in world.tails.items():
        positions[tuple(sorted((tail.group, tail.sequence) for tail in tails.values()))].append(
            rank
        )
    if len(positions) > _MOST_PATTERNS:
        return {}
    crossings: Counter[tuple[tuple[str, int], ...]] = Counter()
    for one in positions:
        for other in positions:
            if _cross(dict(one), dict(other)):
                crossings[one] += len(positions[other])
    worst = max(crossings.values(), default=0)
    found = [rank for one, n in crossings.items() if n == worst for rank in positions[one]]
    text = "waits in one process group while ranks that it waits for wait in another"
    return {rank: OddRank(rank, HangKind.MISMATCHED_COLLECTIVE, text) for rank in found}


def _parted(world: _World) -> dict[int, OddRank]:
    """The fewer ranks, where some initialize a process group and others wait in collectives.

    Both wait for their peers, each in a place that the others do not come to. With equal parts all
    are odd.
    """
    camps = {
        activity: [rank for rank, one in world.seen.items() if one.activity is activity]
        for activity in (RankActivity.INIT, RankActivity.PEERS)
    }
    inits, peers = camps.values()
    if not inits or not peers:
        return {}
    fewest = min(len(inits), len(peers))
    found: dict[int, OddRank] = {}
    for ranks, others in ((inits, peers), (peers, inits)):
        if len(ranks) > fewest:
            continue
        for rank in ranks:
            text = (
                f"{world.seen[rank].text}{_place(world, rank)}, while {_named(others)} "
                f"{verb(len(others), 'does', 'do')} not{_place(world, others[0])}"
            )
            found[rank] = OddRank(rank, HangKind.MISMATCHED_COLLECTIVE, text)
    return found


def _place(world: _World, rank: int) -> str:
    """A rank's newest collective, for a sentence."""
    tails = sorted(world.tails.get(rank, {}).values(), key=lambda one: one.age_seconds)
    return f" (newest: {tails[0].operation} {tails[0].sequence})" if tails else ""


def _left(world: _World) -> dict[int, OddRank]:
    """The ranks that have ended well, where all others wait for their peers."""
    if not all(one.activity in WAITS_FOR_PEERS for one in world.seen.values()):
        return {}
    text = f"has ended well, while {_named(world.seen)} {verb(len(world.seen), 'waits', 'wait')}"
    return {rank: OddRank(rank, HangKind.ABSENT, text) for rank in sorted(world.ended)}


def _cross(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    shared = one.keys() & other.keys()
    return any(one[group] < other[group] for group in shared) and any(
        one[group] > other[group] for group in shared
    )


def _apart(world: _World) -> dict[int, OddRank]:
    """The ranks that do something else than the others, where no number tells.

    Where some wait for their peers, all that do not are odd; but with a device a rank that waits
    looks as if it did something else. Then, and where nobody waits, the minority by the stack is.
    """
    keys = {rank: _key(world, rank) for rank in world.seen}
    waiting = [rank for rank, key in keys.items() if key == ()]
    usual, count = Counter(keys.values()).most_common(1)[0] if keys else ((), 0)
    if waiting and not world.on_device:
        usual, count = (), world.size
    if 2 * count <= world.size:
        return {}
    same = [rank for rank, key in keys.items() if key == usual]
    text = f"does not do what {_named(same)} do"
    return {rank: _odd(world, rank, text) for rank, key in keys.items() if key != usual}


def _key(world: _World, rank: int) -> tuple[str, ...]:
    """Return the common cause of ranks with the same activity; none: they wait for peers."""
    one = world.seen[rank]
    waits = one.activity in WAITS_FOR_PEERS or (one.may_wait and world.numbered)
    return () if waits else (one.activity.name, *one.frames)


def _waits(world: _World, rank: int) -> bool:
    """Whether a rank is sure to wait for peers: in backward too, but not at any futex."""
    one = world.seen[rank]
    backward = any(BACKWARD in frame for frame in one.frames[:1])
    return one.activity in WAITS_FOR_PEERS or (backward and not _key(world, rank))


def _leaves(world: _World, rank: int) -> bool:
    """Whether a rank waits for peers only to end its process groups, as a script's end."""
    return any(frame.endswith(":destroy_process_group") for frame in world.seen[rank].frames)


def _busy(world: _World) -> dict[int, OddRank]:
    """The ranks in a loop or at a lock, where nobody is behind and nothing else is known.

    In a world without collectives, a rank at a lock waits for none of them.
    """
    found = _doing(world, {RankActivity.LOOP, RankActivity.LOCK})
    sure = {rank: one for rank, one in found.items() if not world.seen[rank].may_wait}
    return sure or ({} if world.numbered else _doing(world, {RankActivity.LOCK}))


def _verdict(world: _World, odd: Mapping[int, OddRank]) -> HangVerdict:
    ranks = tuple([one for _, one in sorted(odd.items())])
    kind = min([one.kind for one in ranks], key=_ORDER.__getitem__)
    shown = [f"rank {one.rank} {one.reason}" for one in ranks[:_MOST_NAMED]]
    if len(ranks) > _MOST_NAMED:
        shown.append(f"{len(ranks) - _MOST_NAMED} more")
    remedy = _remedy(world, kind, ranks)
    advice = _ADVICE.get(kind, "")
    if kind is HangKind.OVER and remedy is not Remedy.NOTHING:
        advice = _CRASHED
    seen = [world.seen[one.rank] for one in ranks if one.rank in world.seen]
    works = kind is not HangKind.MISMATCHED_COLLECTIVE and len(seen) == len(ranks)
    text = f"{kind.value}: {'; '.join(shown)}" + (f" ({advice})" if advice else "")
    return _whole(world, seen if works else (), kind=kind, ranks=ranks, reason=text, remedy=remedy)


def _remedy(world: _World, kind: HangKind, ranks: tuple[OddRank, ...]) -> Remedy:
    """Return the remedy; a finished script is not run again, nor what all ranks wait for met.

    A rank whose script is over while others wait for it in its midst has crashed, or left them: the
    script is not finished.
    """
    over = any(one.kind is HangKind.OVER for one in ranks)
    midway = any(_waits(world, rank) and not _leaves(world, rank) for rank in world.seen)
    everybody = len(ranks) == world.size and all(comes_again(one.kind) for one in ranks)
    if (
        world.ended
        or (over and not midway)
        or (everybody and (world.size > 1 or kind in _ALONE_TOO))
    ):
        return Remedy.NOTHING
    return Remedy.RESTART_RANK if kind is HangKind.OVER else remedy_of(kind)


def _whole(world: _World, working: Collection[Observation] = (), **fields: Any) -> HangVerdict:
    """A verdict with what is known of the world; working: ranks that may be at work."""
    ages = [tail.age_seconds for tails in world.tails.values() for tail in tails.values()]
    return HangVerdict(
        may_be_work=bool(working) and all(one.computes or one.moves for one in working),
        moves=bool(working) and all(one.moves for one in working),
        busy=bool(working) and all(one.busy for one in working),
        silent=world.silent,
        ended=tuple(sorted(world.ended)),
        waits=any(_waits(world, rank) for rank in world.seen),
        idle_seconds=min(ages, default=math.inf),
        **fields,
    )


def _none_accused(world: _World) -> HangVerdict:
    """The verdict where no rank is odd."""
    if not world.complete:
        text = f"unknown: {_named(world.silent)} gave no evidence, and nobody else is to blame"
        return _whole(world, kind=HangKind.UNKNOWN, reason=text, remedy=Remedy.NOTHING)
    activities = {one.activity for one in world.seen.values()}
    remedy = Remedy.NOTHING if world.ended else Remedy.RESTART_RANK
    if activities == {RankActivity.INIT}:
        text = f"all {world.size} ranks wait to initialize a process group: see the network"
        return _whole(world, kind=HangKind.NETWORK, reason=text, remedy=remedy)
    where = _common_place(world)
    if where and (activities & WAITS_FOR_PEERS or world.on_device):
        text = f"network: all {world.size} ranks wait for each other in {where}"
        return _whole(world, kind=HangKind.NETWORK, reason=text, remedy=remedy)
    shown = Counter(one.text for one in world.seen.values()).most_common(_MOST_NAMED)
    text = "; ".join(f"{count} of {world.size} ranks: {text}" for text, count in shown)
    seen = [*world.seen.values()]
    return _whole(world, seen, kind=HangKind.UNKNOWN, reason=f"unknown: {text}", remedy=remedy)


def _common_place(world: _World) -> str:
    """The collectives in which the ranks are, for people; empty: nothing is known."""
    newest = [
        min(tails.values(), key=lambda tail: (tail.age_seconds, tail.group))
        for tails in world.tails.values()
        if tails
    ]
    places = Counter(f"{one.operation} {one.sequence} of group {one.group}" for one in newest)
    shown = [name for name, _ in sorted(places.items(), key=lambda item: (-item[1], item[0]))]
    return ", ".join(shown[:_MOST_NAMED])


def _named(ranks: Iterable[int]) -> str:
    """Return ranks in words: ranks 0, 2, 5."""
    every = sorted(ranks)
    text = ", ".join(map(str, every[:_MOST_NAMED]))
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return f"rank{'' if len(every) == 1 else 's'} {text}{more}"
