"""Real gloo ranks that hang: the agent's evidence and the master's verdict name rank and cause."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaigns.hang_ranks import HANGS
from campaigns.hangs import EXPECTED, Worlds
from holdfast_agent.health.evidence import TOTAL_SECONDS
from holdfast_master.policies.hang_response import HangKind
from house.patience import patience

pytestmark = pytest.mark.train

LIKE_OTHERS = frozenset(
    {"loop", "lock", "event", "fifo", "load", "data-set", "mesh", "store", "read-pipe"}
    | {"write-pipe", "c-sleep", "c-poll", "start-up"}
)
"""Planted by the campaign alone: torch and the kernel show them as another one that stands here.
The tables of the policies' tests have the rest."""


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    """A process that has imported torch, and forks worlds."""
    folder = Path(tempfile.mkdtemp(prefix="hang", dir="/tmp"))  # the path of a socket is short
    with Worlds(folder) as started:
        yield started
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", sorted(HANGS.keys() - LIKE_OTHERS))
async def test_the_odd_rank_and_the_cause_are_named(worlds: Worlds, name: str) -> None:
    """One rank of three hangs; the first look at all of them tells which one, and why."""
    outcome = await worlds.hang(name, ranks=3, odd=1, step=4)
    assert outcome.wrong == ""
    assert outcome.verdict.reason
    assert not outcome.verdict.silent


@pytest.mark.parametrize("name", ["sleep", "loop", "gil", "stop"])
async def test_of_two_ranks_the_odd_one_is_named(worlds: Worlds, name: str) -> None:
    """With two ranks there is no majority: numbers and the rank's own state decide."""
    assert (await worlds.hang(name, ranks=2, odd=0, step=0)).wrong == ""


async def test_a_look_moves_nothing_that_counts_as_work(worlds: Worlds) -> None:
    """The server writes each dump to a file, and a disk counts its pages; the ranks only sleep.

    A kernel short of memory has dropped pages of libraries, which a look reads again, once.
    """
    most = []
    for _ in range(3):
        outcome = await worlds.hang("sleep", ranks=3, odd=1, step=4)
        assert outcome.evidence[1].later_stacks or outcome.evidence[1].stack
        most.append(max(one.moved_bytes for one in outcome.evidence))
        if most[-1] < 4096:
            break
    assert min(most) < 4096


async def test_a_stopped_rank_costs_no_more_time_than_one_that_answers(worlds: Worlds) -> None:
    """A rank that answers nothing is waited for no longer than the observation lasts."""
    outcome = await worlds.hang("stop", ranks=3, odd=2, step=1)
    assert outcome.evidence[2].process_state == "T"
    assert not outcome.evidence[2].server_answered
    assert outcome.collected_seconds < TOTAL_SECONDS + 5 * patience()


async def test_the_stack_of_a_rank_without_a_free_gil_comes_from_its_memory(worlds: Worlds) -> None:
    """The recorder answers, the dump does not; to read the memory needs no GIL and no signal."""
    odd = (await worlds.hang("gil", ranks=2, odd=1, step=2)).evidence[1]
    assert odd.server_answered
    assert not odd.gil_free
    assert "hang_ranks.py" in odd.stack
    assert [tail.sequence for tail in odd.groups] == [2]


async def test_a_rank_in_uninterruptible_sleep_still_has_a_server(worlds: Worlds) -> None:
    """Only its main thread sleeps: the others answer, and the dump shows where."""
    odd = (await worlds.hang("vfork", ranks=2, odd=0, step=1)).evidence[0]
    assert (odd.process_state, odd.server_answered, odd.gil_free) == ("D", True, True)
    assert "_uninterruptible" in odd.stack


async def test_the_newest_collective_of_each_group_is_reported(worlds: Worlds) -> None:
    """Group, number, operation, sizes and dtypes come from the recorder, the age from its time."""
    outcome = await worlds.hang("other-order", ranks=2, odd=1, step=3)
    tails = {tail.group: tail for tail in outcome.evidence[0].groups}
    assert sorted(tails) == ["0", "1", "2"]
    assert tails["0"].ranks == (0, 1)
    first = tails["1"]
    assert (first.sequence, first.operation, first.sizes) == (2, "gloo:all_reduce", "[[1]]")
    assert first.dtypes == "['Float']"
    assert 0 < first.age_seconds < 60


def test_each_planted_hang_has_an_expected_verdict() -> None:
    """A hang that nobody judges proves nothing; every cause but the unknown one is planted."""
    assert EXPECTED.keys() == HANGS.keys() > LIKE_OTHERS
    # No storage hangs here; the policies' tests have what kernels show of it.
    assert set(EXPECTED.values()) == set(HangKind) - {HangKind.UNKNOWN, HangKind.STORAGE}
