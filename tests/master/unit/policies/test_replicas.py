"""Replicas: who is in which, who synchronises from when on, and who keeps others waiting."""

from __future__ import annotations

import random

import pytest

from holdfast_master.policies.hang_response import HangKind, HangVerdict, Remedy
from holdfast_master.policies.rendezvous import Candidate
from holdfast_master.policies.replicas import (
    FrozenReplica,
    NewRoster,
    ReplicaPace,
    ReplicaStatus,
    SameRoster,
    SeatedReplica,
    all_still,
    follows,
    frozen,
    memberships,
    never_started,
    roster,
    seat,
    stuck_by_itself,
)
from holdfast_wire.messages import OuterRoster


def nodes(*ranks: int, rack: str = "") -> tuple[Candidate, ...]:
    """Candidates whose agents are named after their rank."""
    labels = (("rack", rack),) if rack else ()
    return tuple(
        Candidate(node_rank=rank, agent_id=f"a{rank}", local_world_size=1, topology=labels)
        for rank in ranks
    )


def ranks_of(chosen: tuple[SeatedReplica, ...]) -> dict[int, list[int]]:
    """Replica to its node ranks."""
    return {one.number: [member.node_rank for member in one.members] for one in chosen}


def test_a_first_world_is_cut_into_whole_replicas() -> None:
    """In rank order; what does not make another replica is left over."""
    chosen = seat((), nodes(4, 2, 0, 1, 3), nodes=2, size=8, last=0)
    assert ranks_of(chosen) == {1: [0, 1], 2: [2, 3]}
    assert {one.round for one in chosen} == {0}


def test_who_goes_on_keeps_number_round_and_order() -> None:
    """New replicas come behind, under numbers above all that were ever given."""
    going = [SeatedReplica(5, nodes(6, 7), 9), SeatedReplica(2, nodes(1, 0), 4)]
    chosen = seat(going, nodes(3, 2), nodes=2, size=8, last=7)
    assert ranks_of(chosen) == {2: [1, 0], 5: [6, 7], 8: [2, 3]}
    assert [one.round for one in chosen] == [4, 9, 0]


def test_the_oldest_replicas_stay_where_fewer_fit() -> None:
    """A smaller job loses its newest replicas."""
    going = [SeatedReplica(number, nodes(number), 1) for number in (4, 1, 3)]
    assert list(ranks_of(seat(going, nodes(9), nodes=1, size=2, last=4))) == [1, 3]


def test_nodes_that_were_together_or_near_stay_together() -> None:
    """Equal labels first, then the replica before: its nodes have each other's memory."""
    free = (*nodes(0, 2, rack="b"), *nodes(1, 3, rack="a"))
    assert ranks_of(seat((), free, nodes=2, size=4, last=0)) == {1: [1, 3], 2: [0, 2]}
    before = {0: 1, 3: 1, 1: 2, 2: 2}
    chosen = seat((), nodes(0, 1, 2, 3), nodes=2, size=4, last=2, before=before)
    assert ranks_of(chosen) == {3: [0, 3], 4: [1, 2]}


def test_a_node_without_a_store_is_not_the_first_of_a_replica() -> None:
    """Unless no node of it has one: then it is asked again."""
    chosen = seat((), nodes(0, 1, 2, 3), nodes=2, size=4, last=0, not_first={0, 2, 3})
    assert ranks_of(chosen) == {1: [1, 0], 2: [2, 3]}


@pytest.mark.parametrize("seed", range(20))
def test_seats_are_whole_and_numbers_new_whatever_is_left(seed: int) -> None:
    """No node is seated twice, and no replica is cut."""
    luck = random.Random(seed)
    size, unit = luck.randrange(1, 30), luck.randrange(1, 4)
    every = list(nodes(*range(size)))
    luck.shuffle(every)
    going = [
        SeatedReplica(number, tuple(every[at : at + unit]), luck.randrange(1, 5))
        for number, at in enumerate(range(0, size // 2 // unit * unit, unit), start=1)
    ]
    taken = {one.node_rank for replica in going for one in replica.members}
    free = [one for one in every if one.node_rank not in taken]
    most = luck.randrange(1, 30)
    chosen = seat(going, free, nodes=unit, size=most, last=len(going))
    seated = [one for ranks in ranks_of(chosen).values() for one in ranks]
    assert len(seated) == len(set(seated)) <= most
    assert all(len(one.members) == unit for one in chosen)
    assert len(chosen) == min(most // unit, len(going) + len(free) // unit)
    assert [one.number for one in chosen] == sorted({one.number for one in chosen})


def standings(text: str) -> list[ReplicaStatus]:
    """`1r 2 3x`: replica 1 is ready, 2 is not yet, 3 is lost."""
    return [
        ReplicaStatus(int(one[0]), intact="x" not in one, ready="r" in one or "x" in one)
        for one in text.split()
    ]


ROSTERS = [
    # replicas, in the roster, ready since, at, what follows
    ("1 2", (), None, 0.0, None),
    ("1r 2", (), 10.0, 12.0, 15.0),
    ("1r 2", (), 10.0, 15.0, (1,)),
    ("1r 2r", (), 10.0, 10.0, (1, 2)),
    ("1r 2x", (), 10.0, 10.0, (1,)),
    ("1r 2r", (1, 2), None, 0.0, None),
    ("1r 2x 3r", (1, 2, 3), None, 0.0, (1, 3)),
    ("1r 2x 3", (1, 2), None, 0.0, (1,)),
    ("1r 3r", (1,), None, 0.0, (1, 3)),
    ("1x 2x", (1, 2), None, 0.0, None),
    ("3r 4", (1, 2), 10.0, 11.0, 15.0),
]


@pytest.mark.parametrize(("text", "now_in", "since", "now", "then"), ROSTERS)
def test_a_roster_follows_from_who_is_lost_and_who_is_ready(
    text: str,
    now_in: tuple[int, ...],
    since: float | None,
    now: float,
    then: tuple[int, ...] | float | None,
) -> None:
    """Losses count at once; the first of those that begin together waits for the others."""
    found = roster(standings(text), now_in, now, ready_since=since, window=5.0)
    if isinstance(then, tuple):
        assert isinstance(found, NewRoster)
        assert found.replicas == then
    else:
        assert found == SameRoster(then)


def test_members_that_could_not_meet_are_in_anew() -> None:
    """Another epoch with the same members, each of which leaves the groups that it has."""
    why = "its members could not meet"
    found = roster(standings("1r 2r"), (1, 2), 0.0, ready_since=None, window=5.0, again=why)
    assert isinstance(found, NewRoster)
    assert found.replicas == (1, 2)
    assert "could not meet" in found.reason
    assert memberships((1, 2), {1: 1, 2: 3}, 4, anew=True) == (4, 4)


def test_a_member_that_was_out_is_in_since_it_came_back() -> None:
    """A rank that saw neither roster between knows by it that a member has left its group."""
    assert memberships((1, 2, 3), {1: 1, 3: 2}, 5) == (1, 5, 2)


@pytest.mark.parametrize(
    ("epoch", "since", "then"),
    [
        (4, {1: 1, 3: 2}, True),
        (4, {1: 1, 2: 4}, True),
        (4, {1: 1, 2: 3}, False),
        (3, {1: 1, 3: 2}, True),
        (3, {1: 1, 3: 1}, False),
        (2, {1: 1}, False),
        (4, {1: 1, 5: 4}, True),
        (4, {1: 1, 5: 3}, False),
    ],
)
def test_a_roster_of_another_history_does_not_follow(
    epoch: int,
    since: dict[int, int],
    then: bool,  # noqa: FBT001
) -> None:
    """It is not newer, or has a member since an epoch in which the ranks knew of none."""
    before = OuterRoster(epoch=3, replicas=(1, 3), since=(1, 2))
    after = OuterRoster(epoch=epoch, replicas=tuple(since), since=tuple(since.values()))
    assert follows(before, after) is then


PACES = [
    # (step, still) of each replica, who is frozen
    ([(20, 40.0), (15, 40.0)], 2),
    ([(20, 40.0), (15, 29.0)], None),
    ([(20, 0.1), (15, 40.0)], None),
    ([(15, 40.0), (15, 40.0)], None),
    ([(15, 40.0)], None),
    ([(20, 40.0), (16, 40.0), (15, 40.0)], 3),
    ([(20, 40.0), (15, 40.0), (15, 40.0)], None),
]


@pytest.mark.parametrize(("paces", "number"), PACES)
def test_who_is_behind_while_all_stand_still_keeps_the_others_waiting(
    paces: list[tuple[int, float]], number: int | None
) -> None:
    """At one step nothing tells which it is; while somebody steps nobody waits."""
    told = [ReplicaPace(at, step, still) for at, (step, still) in enumerate(paces, start=1)]
    found = frozen(told, 30.0)
    assert (None if found is None else found.number) == number


def test_a_replica_that_saves_or_evaluates_is_not_frozen() -> None:
    """Its steps stand still for a known reason; nor do all stand still then."""
    told = [ReplicaPace(1, 20, 40.0), ReplicaPace(2, 15, 40.0, working=True)]
    assert frozen(told, 30.0) is None
    assert all_still(told, 30.0) is None
    assert all_still(told[:1], 30.0) == FrozenReplica(0, "the replica has stood still for 40 s")


def verdict(kind: HangKind) -> HangVerdict:
    """A verdict on a replica's ranks."""
    return HangVerdict(kind=kind, reason=kind.value, remedy=Remedy.NOTHING, ranks=(), silent=())


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ({1: HangKind.UNKNOWN, 2: HangKind.STOPPED}, [2]),
        ({1: HangKind.NETWORK, 2: HangKind.UNKNOWN}, []),
        ({1: HangKind.STORAGE, 2: HangKind.STORAGE}, []),
        ({1: HangKind.LOCK, 2: HangKind.UNKNOWN, 3: HangKind.STOPPED}, [1, 3]),
    ],
)
def test_a_replica_whose_ranks_show_why_keeps_the_others_waiting(
    kinds: dict[int, HangKind], found: list[int]
) -> None:
    """Who waits in a sync shows nothing; what all show is no one's fault."""
    stuck = stuck_by_itself({number: verdict(kind) for number, kind in kinds.items()})
    assert [one.number for one in stuck] == found


def test_a_replica_that_starts_shows_less_by_its_ranks() -> None:
    """It may read data or hold a lock before its first step; a stopped process starts nothing."""
    stuck = stuck_by_itself(
        {
            1: verdict(HangKind.DATA_LOADER),
            2: verdict(HangKind.DATA_LOADER),
            3: verdict(HangKind.STOPPED),
        },
        starting={2, 3},
    )
    assert [one.number for one in stuck] == [1, 3]


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([ReplicaPace(1, 20, 601.0), ReplicaPace(2, 20, 600.0)], [3, 4]),
        ([ReplicaPace(1, 20, 700.0), ReplicaPace(2, 20, 599.0)], []),
        ([ReplicaPace(1, 20, 700.0), ReplicaPace(2, 20, 700.0, working=True)], []),
        ([], []),
    ],
)
def test_a_first_step_that_never_comes_keeps_the_others_waiting(
    others: list[ReplicaPace], found: list[int]
) -> None:
    """While one of the others steps or works nobody waits for it, nor where none has begun."""
    out = never_started(others, [3, 4], 600.0)
    assert [one.number for one in out] == found
    assert all("has completed no first step, and the others have" in one.reason for one in out)
