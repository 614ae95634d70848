"""The cause of a hang from the evidence of all ranks: a table of causes, and what must hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.hang import classify
from holdfast_master.policies.hang_response import HangKind, HangVerdict, Remedy
from holdfast_wire.messages import ChildEvidence, GroupTail, RankEvidence
from messages.hang_evidence import (
    BACKWARD,
    COMPILES,
    DATA_SET,
    ELSEWHERE,
    INITIALIZES,
    LIB,
    LOADS,
    OVER,
    QUEUE,
    REDUCES,
    RUNS,
    SAVES,
    SCRIPT,
    SLEEPS,
    STUCK,
    TORCH,
    USER,
    rank,
    stack,
    tail,
    with_two,
)

ONE_OF_THREE = [
    ("gone", rank(1, process_state="", **STUCK), HangKind.PROCESS_GONE),
    ("zombie", rank(1, process_state="Z", **STUCK), HangKind.PROCESS_GONE),
    ("stopped", rank(1, process_state="T", **STUCK), HangKind.STOPPED),
    ("D", rank(1, process_state="D", kernel_function="nfs_wait"), HangKind.UNINTERRUPTIBLE),
    ("GIL", rank(1, gil_free=False, stack=USER, **SLEEPS), HangKind.NATIVE_GIL),
    ("GIL, no stack", rank(1, gil_free=False, stack="", **RUNS), HangKind.NATIVE_GIL),
    ("data loader", rank(1, stack=LOADS, kernel_function="do_poll"), HangKind.DATA_LOADER),
    ("data set runs", rank(1, stack=DATA_SET, **RUNS), HangKind.DATA_LOADER),
    ("compiler", rank(1, stack=COMPILES, kernel_function="do_wait"), HangKind.COMPILATION),
    ("torch.save", rank(1, stack=SAVES, **RUNS), HangKind.STORAGE),
    ("NFS", rank(1, stack=USER, kernel_function="rpc_wait_bit"), HangKind.STORAGE),
    ("FUSE", rank(1, stack=DATA_SET, kernel_function="fuse_get_req"), HangKind.STORAGE),
    ("FIFO", rank(1, stack=USER, kernel_function="wait_for_partner"), HangKind.PIPE),
    ("helper", rank(1, stack=USER, kernel_function="anon_pipe_read"), HangKind.PIPE),
    ("save to a helper", rank(1, stack=SAVES, kernel_function="anon_pipe_write"), HangKind.PIPE),
    ("thread", rank(1, stack=OVER), HangKind.OVER),
    ("lock", rank(1, stack=USER), HangKind.LOCK),
    ("file lock", rank(1, stack=USER, kernel_function="locks_lock_inode"), HangKind.LOCK),
    ("queue", rank(1, stack=QUEUE), HangKind.LOCK),
    ("loop", rank(1, stack=USER, **RUNS), HangKind.PYTHON_LOOP),
    ("sleep", rank(1, stack=USER, **SLEEPS), HangKind.ABSENT),
    ("backward", rank(1, stack=BACKWARD), HangKind.ABSENT),
    ("no stack", rank(1, stack=""), HangKind.ABSENT),
    (
        "another operation",
        rank(1, groups=(tail(6, operation="gloo:barrier", sizes="[]", dtypes="[]"),)),
        HangKind.MISMATCHED_COLLECTIVE,
    ),
    ("another shape", rank(1, groups=(tail(6, sizes="[[2, 4]]"),)), HangKind.MISMATCHED_COLLECTIVE),
    (
        "another dtype",
        rank(1, groups=(tail(6, dtypes="['Half']"),)),
        HangKind.MISMATCHED_COLLECTIVE,
    ),
]


@pytest.mark.parametrize(
    ("odd", "kind"), [pytest.param(odd, kind, id=name) for name, odd, kind in ONE_OF_THREE]
)
def test_the_one_rank_that_two_wait_for_is_named(odd: RankEvidence, kind: HangKind) -> None:
    """Rank 1 is odd, for its own reason; the verdict is the same in any order."""
    verdict = classify(with_two(odd), world_size=3)
    assert (verdict.kind, [one.rank for one in verdict.ranks]) == (kind, [1])
    assert verdict.ranks[0].kind is kind
    assert "rank 1 " in verdict.reason
    assert verdict.silent == ()
    assert classify(reversed(with_two(odd)), world_size=3) == verdict


def test_every_cause_stands_in_a_table() -> None:
    """Those without an odd rank have tests of their own."""
    listed = {kind for _, _, kind in ONE_OF_THREE}
    assert set(HangKind) - listed == {HangKind.NETWORK, HangKind.UNKNOWN}


REMEDIES = [
    (rank(1, process_state="", **STUCK), Remedy.RESTART_AGENT),
    (rank(1, process_state="D"), Remedy.REPLACE_NODE),
    (rank(1, process_state="T", **STUCK), Remedy.RESTART_RANK),
    (rank(1, stack=SAVES), Remedy.REPLACE_NODE),
    (rank(1, stack=LOADS), Remedy.RESTART_RANK),
    (rank(1, stack=USER, **SLEEPS), Remedy.RESTART_RANK),
]


@pytest.mark.parametrize(("odd", "remedy"), REMEDIES)
def test_the_smallest_remedy_that_helps_is_named(odd: RankEvidence, remedy: Remedy) -> None:
    """A process that no signal ends, and storage that is away, need another node."""
    assert classify(with_two(odd), world_size=3).remedy is remedy


def named(verdict: HangVerdict) -> tuple[HangKind, list[int]]:
    """Return the cause and the odd ranks."""
    return verdict.kind, [one.rank for one in verdict.ranks]


def judged(*evidence: RankEvidence) -> tuple[HangKind, list[int]]:
    """Return the cause and the odd ranks of a world whose ranks all gave evidence."""
    return named(classify(evidence, world_size=len(evidence)))


def test_all_in_the_same_collective_is_the_network() -> None:
    """Everybody is there, so nobody is to blame; the collective is named."""
    verdict = classify([rank(0, 6), rank(1, 6), rank(2, 6, stack=BACKWARD)], world_size=3)
    assert named(verdict) == (HangKind.NETWORK, [])
    assert "gloo:all_reduce 6 of group 0" in verdict.reason
    assert verdict.remedy is Remedy.RESTART_RANK


def test_a_rank_that_left_a_collective_which_others_wait_in_blames_nobody() -> None:
    """All contributed, one got the result: a message was lost."""
    assert judged(rank(0, 7), rank(1, 6), rank(2, 6)) == (HangKind.NETWORK, [])


def test_all_that_initialize_a_group_wait_for_the_network() -> None:
    """No collective has a number yet."""
    waiting = [rank(at, stack=INITIALIZES) for at in range(2)]
    assert judged(*waiting) == (HangKind.NETWORK, [])
    assert judged(*waiting, rank(2, stack=USER, **SLEEPS)) == (HangKind.ABSENT, [2])


def test_a_rank_in_backward_waits_for_its_peers() -> None:
    """DDP's buckets leave no frame of their own; the verdict says that somebody is missing."""
    late = rank(1, 5, stack=USER, **SLEEPS)
    verdict = classify([rank(0, 6, stack=BACKWARD), late, rank(2, 6, stack=BACKWARD)], world_size=3)
    assert [one.rank for one in verdict.ranks] == [1]
    assert verdict.waits


def test_a_call_of_wait_in_the_script_is_a_wait_for_peers() -> None:
    """`Work.wait` leaves no frame of torch: a futex under a line of the script."""
    found = [rank(0, 6), rank(1, 6, stack=USER), rank(2, 6)]
    assert judged(*found) == (HangKind.NETWORK, [])
    assert judged(rank(0, 6, stack=USER), rank(1, 5, stack=LOADS)) == (HangKind.DATA_LOADER, [1])
    assert judged(rank(0, 6), rank(1, 6, stack=QUEUE), rank(2, 6)) == (HangKind.LOCK, [1])


def test_a_rank_without_any_collective_is_behind_those_that_have_one() -> None:
    """Torch's recorder has no entries before the first one; without a recorder nothing is known."""
    found = [rank(0, 1), rank(1, stack=BACKWARD)]
    assert judged(*found) == (HangKind.ABSENT, [1])
    unknown = rank(1, stack=BACKWARD, server_answered=False)
    assert judged(found[0], unknown) == (HangKind.NETWORK, [])


def test_two_ranks_in_different_collectives_are_both_odd() -> None:
    """Nobody knows which of two is right; of three the one that differs is odd."""
    found = [rank(0, 6), rank(1, groups=(tail(6, operation="gloo:barrier", ranks=(0, 1, 2)),))]
    assert judged(*found) == (HangKind.MISMATCHED_COLLECTIVE, [0, 1])
    assert named(classify(found, world_size=3)) == (HangKind.UNKNOWN, [])
    verdict = classify([*found, rank(3, 6), rank(4, 6)], world_size=5)
    assert named(verdict) == (HangKind.MISMATCHED_COLLECTIVE, [1])


def test_a_rank_that_never_sends_is_odd_without_a_number() -> None:
    """Gloo records no sends and receives: the one that does not wait is odd."""
    assert judged(rank(0, 6), rank(1, 6, stack=USER, **SLEEPS)) == (HangKind.ABSENT, [1])


def test_ranks_with_two_orders_of_groups_are_mismatched() -> None:
    """The rank that crosses most others is odd; of two both are."""
    usual = (tail(5, "1"), tail(4, "2"))
    other = (tail(4, "1"), tail(5, "2"))
    many = [rank(at, groups=other if at == 1 else usual) for at in range(4)]
    assert judged(*many) == (HangKind.MISMATCHED_COLLECTIVE, [1])
    assert judged(*many[:2]) == (HangKind.MISMATCHED_COLLECTIVE, [0, 1])


NEW_GROUP = stack(
    (f"{TORCH}/distributed/distributed_c10d.py", "_new_process_group_helper"),
    (f"{TORCH}/distributed/distributed_c10d.py", "new_group"),
    SCRIPT,
)


@pytest.mark.parametrize(
    ("alone", "size", "right"), [({1}, 3, [1]), ({0, 2}, 3, [1]), ({0, 1}, 4, [0, 1, 2, 3])]
)
def test_the_ranks_that_make_a_group_without_the_others_are_odd(
    alone: set[int], size: int, right: list[int]
) -> None:
    """Or those that do not make it with most; with equal parts nobody knows."""
    ranks = [rank(at, 100, stack=NEW_GROUP) if at in alone else rank(at, 101) for at in range(size)]
    verdict = classify(ranks, world_size=size)
    assert verdict.kind is HangKind.MISMATCHED_COLLECTIVE
    assert [one.rank for one in verdict.ranks] == right
    assert "(newest: gloo:all_reduce 100)" in verdict.reason
    assert "101" in verdict.reason


@pytest.mark.parametrize("stack_", [LOADS, COMPILES, SAVES])
def test_what_all_ranks_show_at_once_no_restart_mends(stack_: str) -> None:
    """On one of them a restart may; a rank that is alone has nobody to compare it with."""
    everybody = [rank(at, 5, stack=stack_) for at in range(3)]
    assert classify(everybody, world_size=3).remedy is Remedy.NOTHING
    assert classify(with_two(rank(1, stack=stack_)), world_size=3).remedy is not Remedy.NOTHING


def test_the_process_below_a_rank_that_does_least_is_named() -> None:
    """A loader waits for its worker, and the worker for the storage."""
    child = ChildEvidence(pid=77, command="pt_data_worker", state="D", kernel_function="nfs_wait")
    verdict = classify(with_two(rank(1, stack=LOADS, children=(child,))), world_size=3)
    assert "process 77 (pt_data_worker) is in state D, kernel: nfs_wait" in verdict.reason


def test_the_thread_that_holds_the_gil_is_named() -> None:
    """Not the main thread, which waits for it."""
    stuck = USER.replace("Thread 0x00007f0d", "Thread 3, holds the GIL").replace(
        f"{LIB}/threading.py", "/job/native.py"
    )
    verdict = classify(with_two(rank(1, gil_free=False, stack=stuck)), world_size=3)
    assert "/job/native.py:982 in run" in verdict.reason


def test_groups_of_other_ranks_are_not_compared() -> None:
    """Two tensor-parallel groups at different numbers, and one rank that both wait for."""
    found = [
        rank(0, groups=(tail(9, "1"), tail(3))),
        rank(1, groups=(tail(9, "1"), tail(3))),
        rank(2, groups=(tail(4, "2"), tail(3))),
        rank(3, groups=(tail(3, "2"), tail(3)), stack=LOADS),
    ]
    assert judged(*found) == (HangKind.DATA_LOADER, [3])


def test_a_group_that_the_recorder_has_dropped_blames_nobody() -> None:
    """Newer entries of other groups push out the old ones of a group that is seldom used."""
    tails = (tail(50), tail(2, "9", ranks=(0, 1)))
    found = [rank(0, groups=tails), rank(1, groups=tails[:1], stack=BACKWARD)]
    assert judged(*found) == (HangKind.NETWORK, [])


@pytest.mark.parametrize(
    "operation", ["nccl:scatter", "nccl:all_to_all_single", "nccl:_reduce_oop"]
)
def test_operations_with_uneven_inputs_are_compared_by_name_only(operation: str) -> None:
    """The root of a scatter has an input, the others have none."""
    found = [
        rank(at, groups=(tail(6, operation=operation, sizes=sizes, dtypes=sizes),))
        for at, sizes in enumerate(["[[4, 2]]", "[]", "[]"])
    ]
    assert judged(*found) == (HangKind.NETWORK, [])


def test_on_a_device_the_ranks_that_wait_look_like_loops() -> None:
    """NCCL's ranks run ahead and spin where they need a result: only the lowest number is odd."""

    def on_device(number: int, sequence: int, text: str) -> RankEvidence:
        tails = (tail(sequence, operation="nccl:all_reduce"),)
        return rank(number, groups=tails, stack=text, **RUNS)

    found = [on_device(0, 103, ELSEWHERE), on_device(1, 105, USER), on_device(2, 100, USER)]
    assert judged(*found) == (HangKind.ABSENT, [2])
    same = [on_device(at, 105, USER) for at in range(3)]
    assert judged(*same) == (HangKind.NETWORK, [])
    odd = [*same[:2], on_device(2, 105, ELSEWHERE)]
    assert judged(*odd) == (HangKind.ABSENT, [2])
    waits = [*same[:2], on_device(2, 105, REDUCES)]
    assert judged(*waits) == (HangKind.ABSENT, [2])
    blocked = [
        dataclasses.replace(one, process_state="S", kernel_function="futex_do_wait") for one in odd
    ]
    assert judged(*blocked) == (HangKind.ABSENT, [2])
    mute = rank(2, server_answered=False, stack=USER, **RUNS)
    assert judged(*same[:2], mute) == (HangKind.NETWORK, [])


def test_several_odd_ranks_have_a_cause_each() -> None:
    """The strongest cause names the hang."""
    found = [rank(0, 5, stack=LOADS), rank(1, 5, process_state="T", **STUCK), rank(2, 6)]
    verdict = classify(found, world_size=3)
    assert named(verdict) == (HangKind.STOPPED, [0, 1])
    assert [one.kind for one in verdict.ranks] == [HangKind.DATA_LOADER, HangKind.STOPPED]


def test_storage_that_is_away_for_all_needs_no_other_node() -> None:
    """No node is to blame, and a restart would wait, too."""
    verdict = classify([rank(at, 5, stack=SAVES) for at in range(3)], world_size=3)
    assert named(verdict) == (HangKind.STORAGE, [0, 1, 2])
    assert verdict.remedy is Remedy.NOTHING


def test_without_a_worker_server_stacks_are_compared() -> None:
    """With `--no-worker-server` there are no numbers, but faulthandler's stacks."""
    mute: dict[str, Any] = {"server_answered": False, "gil_free": False}
    waits = [rank(at, **mute) for at in range(2)]
    assert judged(*waits, rank(2, stack=USER, **mute, **SLEEPS)) == (HangKind.ABSENT, [2])
    assert judged(*waits, rank(2, stack=USER, **mute)) == (HangKind.LOCK, [2])
    assert judged(*waits, rank(2, stack=BACKWARD, **mute)) == (HangKind.ABSENT, [2])
    users = [rank(at, stack=USER, **mute, **SLEEPS) for at in range(2)]
    odd = rank(2, stack=ELSEWHERE, **mute, **SLEEPS)
    assert judged(*users, odd) == (HangKind.ABSENT, [2])
    assert judged(*users) == (HangKind.UNKNOWN, [])
    two = [users[0], dataclasses.replace(odd, rank=1)]
    assert classify(two, world_size=2) == classify(two[::-1], world_size=2)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"stack": USER, **RUNS}, HangKind.PYTHON_LOOP),
        ({"stack": QUEUE}, HangKind.LOCK),
        ({"stack": USER}, HangKind.LOCK),
        ({"stack": LOADS}, HangKind.DATA_LOADER),
    ],
)
def test_a_job_of_one_rank_is_judged_by_itself(fields: dict[str, Any], kind: HangKind) -> None:
    """Without collectives there is nobody to wait for."""
    assert judged(rank(0, **fields)) == (kind, [0])
    assert judged(rank(0, **fields), rank(1, **fields)) == (kind, [0, 1])


def test_a_rank_without_a_core_is_not_said_to_hold_the_gil() -> None:
    """On an overloaded node a dump comes too late although nobody holds the GIL."""
    starved: dict[str, Any] = {**RUNS, "cpu_seconds": 0.0, "gil_free": False, "stack": ""}
    kind, ranks = judged(rank(0, 6), rank(1, 6, **starved))
    assert kind is not HangKind.NATIVE_GIL
    assert ranks == [1]


def test_a_silent_rank_blames_nobody_else() -> None:
    """The silent one may be the odd one, so the others are not compared."""
    behind = rank(1, 5, stack=USER, **SLEEPS)
    for found in ([rank(0, 6), behind], [rank(0, 6), behind, rank(2, **STUCK)]):
        verdict = classify(found, world_size=3)
        assert named(verdict) == (HangKind.UNKNOWN, [])
        assert verdict.silent == (2,)
        assert verdict.remedy is Remedy.NOTHING
        assert "rank 2 gave no evidence" in verdict.reason
    verdict = classify([rank(0, 6), rank(1, 5, process_state="T")], world_size=3)
    assert named(verdict) == (HangKind.STOPPED, [1])


def test_without_any_evidence_nothing_is_known() -> None:
    """The agents may all be away."""
    verdict = classify([], world_size=20)
    assert named(verdict) == (HangKind.UNKNOWN, [])
    assert verdict.silent == tuple(range(20))
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in verdict.reason


def test_a_dump_of_more_than_a_hundred_threads_lacks_the_main_one() -> None:
    """Faulthandler leaves out the oldest threads, and with them the main one."""
    cut = REDUCES.replace("all_reduce", "x").rstrip() + "\n..."
    assert judged(rank(0, 6), rank(1, 5, stack=cut)) == (HangKind.ABSENT, [1])


def test_the_reason_of_a_large_world_stays_short() -> None:
    """Of a thousand odd ranks eight are described."""
    found = [rank(at, 5, stack=LOADS) for at in range(1000)]
    verdict = classify(found, world_size=1000)
    assert len(verdict.ranks) == 1000
    assert "992 more" in verdict.reason
    assert len(verdict.reason) < 4000


def test_the_work_on_a_large_world_grows_with_its_ranks_only() -> None:
    """Where each of thousands is somewhere else, pairs are not compared."""
    found = [rank(at, groups=(tail(at, "1"), tail(5000 - at, "2"))) for at in range(2000)]
    verdict = classify(found, world_size=2000)
    assert named(verdict) == (HangKind.NETWORK, [])
    assert len(verdict.reason) < 1000


STACKS = [REDUCES, BACKWARD, INITIALIZES, LOADS, COMPILES, SAVES, QUEUE, USER, ELSEWHERE, ""]
FUNCTIONS = ["", "futex_do_wait", "hrtimer_nanosleep", "nfs_wait", "pipe_read", "do_poll"]
TAILS = st.builds(
    GroupTail,
    group=st.sampled_from("012"),
    ranks=st.sampled_from([(), (0, 1), tuple(range(8))]),
    sequence=st.integers(0, 3),
    operation=st.sampled_from(["gloo:all_reduce", "gloo:barrier", "nccl:all_reduce"]),
    sizes=st.sampled_from(["[[2]]", "[]"]),
    age_seconds=st.floats(0, 100),
)
EVIDENCE = st.builds(
    RankEvidence,
    process_state=st.sampled_from(["", "R", "S", "D", "T", "Z", "I"]),
    kernel_function=st.sampled_from(FUNCTIONS),
    cpu_seconds=st.floats(0, 1),
    observed_seconds=st.just(1.0),
    server_answered=st.booleans(),
    gil_free=st.booleans(),
    stack=st.sampled_from(STACKS),
    groups=st.lists(TAILS, max_size=3, unique_by=lambda one: one.group).map(tuple),
)
CALM = st.builds(
    rank,
    number=st.just(0),
    sequence=st.sampled_from([None, 4, 5, 6]),
    stack=st.sampled_from(STACKS),
    kernel_function=st.sampled_from(FUNCTIONS),
)
WORLDS = st.lists(EVIDENCE, max_size=8) | st.lists(CALM, max_size=8)


def numbered(evidence: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Give each its rank."""
    return [dataclasses.replace(one, rank=at) for at, one in enumerate(evidence)]


@given(evidence=WORLDS.map(numbered), data=st.data())
def test_the_order_of_the_ranks_does_not_matter(
    evidence: list[RankEvidence], data: st.DataObject
) -> None:
    """Agents answer in any order."""
    shuffled = data.draw(st.permutations(evidence))
    size = max(1, len(evidence))
    assert classify(shuffled, world_size=size) == classify(evidence, world_size=size)


@given(evidence=WORLDS.map(numbered), data=st.data())
def test_a_missing_answer_never_blames_another_rank(
    evidence: list[RankEvidence], data: st.DataObject
) -> None:
    """Less evidence names fewer ranks, or the same ones, and never the silent one."""
    size = max(1, len(evidence))
    kept = [one for one in evidence if data.draw(st.booleans())]
    whole = {one.rank: one.kind for one in classify(evidence, world_size=size).ranks}
    part = {one.rank for one in classify(kept, world_size=size).ranks}
    assert part <= whole.keys()
    assert part <= {one.rank for one in kept}


@given(evidence=WORLDS.map(numbered), extra=st.integers(0, 3))
def test_every_verdict_is_whole(evidence: list[RankEvidence], extra: int) -> None:
    """A verdict has a reason; its odd ranks are in order, exist, and the worst names the hang."""
    size = len(evidence) + extra
    verdict = classify(evidence, world_size=size)
    ranks = [one.rank for one in verdict.ranks]
    assert verdict.reason.startswith(verdict.kind.value) or verdict.kind is HangKind.NETWORK
    assert ranks == sorted(set(ranks))
    assert all(0 <= one < size for one in ranks)
    assert set(verdict.silent) >= set(range(len(evidence), size))
    if ranks:
        order = list(HangKind)
        assert verdict.kind is min([one.kind for one in verdict.ranks], key=order.index)
        assert all(one.reason for one in verdict.ranks)
    else:
        assert verdict.kind in {HangKind.NETWORK, HangKind.UNKNOWN}


@given(evidence=WORLDS.map(numbered))
def test_ranks_that_only_wait_for_their_peers_are_never_alone_to_blame(
    evidence: list[RankEvidence],
) -> None:
    """A world in which everybody waits in the same collective blames nobody."""
    waiting = [
        dataclasses.replace(one, process_state="S", gil_free=True, stack=REDUCES, groups=(tail(6),))
        for one in evidence
    ]
    assert classify(waiting, world_size=len(waiting)).ranks == ()
