"""Version from which a world starts, and node that commits a step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.checkpoints import (
    MemoryPart,
    RestoreOffer,
    coordinator,
    origin,
    sources,
)
from holdfast_wire.messages import CheckpointVersion, Tier
from holdfast_wire.tiers import TIERS

MOST = 64


def v(step: int, lineage: int = 1) -> CheckpointVersion:
    """A version."""
    return CheckpointVersion(lineage=lineage, step=step)


def offer(memory: tuple[int, ...] = (), stored: tuple[int, ...] = ()) -> RestoreOffer:
    """Return the offer of a node with these steps of lineage 1 in memory and on storage."""
    return holding(frozenset(map(v, memory)), frozenset(map(v, stored)))


def holding(
    memory: frozenset[CheckpointVersion], stored: frozenset[CheckpointVersion], **more: Any
) -> RestoreOffer:
    """Return the offer of a node with these versions in memory and on storage."""
    return RestoreOffer(versions={Tier.MEMORY: memory, Tier.STORAGE: stored}, **more)


TABLE = [
    # what each node has; what is damaged; what was announced; then step, tier, warning
    ({0: offer((8, 9)), 1: offer((8,))}, (), None, (8, Tier.MEMORY, False)),
    ({0: offer((9,), (5,)), 1: offer((), (5,))}, (), 5, (5, Tier.STORAGE, False)),
    ({0: offer((5,), (5,)), 1: offer((5,), (5,))}, (), 5, (5, Tier.MEMORY, False)),
    (
        {0: offer((9,), (5,)), 1: offer((9,), (5,))},
        ((v(9), Tier.MEMORY),),
        5,
        (5, Tier.STORAGE, False),
    ),
    (
        {0: offer((), (5, 4)), 1: offer((), (5, 4))},
        ((v(5), Tier.STORAGE),),
        5,
        (4, Tier.STORAGE, True),
    ),
    ({0: offer((9,)), 1: offer((8,))}, (), None, (None, Tier.UNSPECIFIED, False)),
    ({0: offer(), 1: offer()}, (), 5, (None, Tier.UNSPECIFIED, True)),
    ({0: offer((3,), (7,)), 1: offer((3,), (7,))}, (), 7, (7, Tier.STORAGE, False)),
]


@pytest.mark.parametrize(("offers", "damaged", "announced", "expected"), TABLE)
def test_the_newest_that_every_node_has_in_one_tier(
    offers: dict[int, RestoreOffer],
    damaged: tuple[tuple[CheckpointVersion, Tier], ...],
    announced: int | None,
    expected: tuple[int | None, Tier, bool],
) -> None:
    """Memory where it is as new; a damaged copy leads to another tier, then to an older step."""
    choice = origin(offers, damaged, None if announced is None else v(announced), MOST)
    step = None if choice.version is None else choice.version.step
    assert (step, choice.tier, choice.older) == expected
    assert choice.reason


def test_a_later_world_counts_more_than_a_later_step() -> None:
    """Step 12 of a world that is no more is older than step 11 of the one after it."""
    both = holding(frozenset([v(12, 1)]), frozenset([v(11, 2)]))
    choice = origin({0: both}, (), None, MOST)
    assert (choice.version, choice.tier) == (v(11, 2), Tier.STORAGE)


def test_a_later_world_counts_less_than_an_announced_step() -> None:
    """World 8 went on from step 14 of world 6; then a node comes back with step 12 of world 7."""
    stored = frozenset([v(14, 6), v(10, 6)])
    back = {0: holding(frozenset([v(12, 7)]), stored)}
    choice = origin(back, (), v(14, 6), MOST)
    assert (choice.version, choice.tier, choice.older) == (v(14, 6), Tier.STORAGE, False)
    damaged = [(v(14, 6), Tier.STORAGE)]
    assert origin(back, damaged, v(14, 6), MOST).version == v(12, 7)
    whole = MemoryPart(world_size=1, ranks=frozenset({0}), whole=True, world="w")
    lent = {
        0: holding(frozenset(), stored, parts={v(12, 7): whole}),
        1: holding(frozenset(), stored),
    }
    assert origin(lent, (), v(14, 6), MOST).version == v(14, 6)
    assert origin(lent, damaged, v(14, 6), MOST).version == v(12, 7)


def part(ranks: set[int], world_size: int = 4, memory: tuple[int, ...] = ()) -> RestoreOffer:
    """A node with the parts of some ranks of step 9; `memory`: of steps that suffice alone."""
    parts = {v(9): MemoryPart(world_size=world_size, ranks=frozenset(ranks), world="w")}
    return holding(frozenset(map(v, memory)), frozenset([v(5)]), parts=parts)


GATHERED = [
    # what each node has; what is damaged; what step is chosen, and whether it is gathered
    ({0: part({0, 1}), 1: part({2, 3})}, (), (9, True)),
    ({0: part({0, 1}), 1: part({2, 3}), 2: offer((), (5,))}, (), (9, True)),
    ({0: part({0, 1}), 1: part({2})}, (), (5, False)),
    ({0: part({0, 1}), 1: part({2, 3})}, ((v(9), Tier.MEMORY),), (5, False)),
    ({0: part({0, 1}), 1: part({0, 1}, 2)}, (), (5, False)),
    ({0: part({0, 1}, memory=(9,)), 1: part({2, 3}, memory=(9,))}, (), (9, False)),
    ({0: part({0, 1}, memory=(9,)), 1: part({2, 3})}, (), (9, True)),
    ({0: part({0, 1}, memory=(9, 8)), 1: part({2, 3}, memory=(8,))}, (), (8, False)),
    ({0: part({0, 1}), 1: dataclasses.replace(part({2, 3}), gathers=False)}, (), (5, False)),
    ({0: part({0, 1, 2, 3}), 1: dataclasses.replace(part({2}), gathers=False)}, (), (5, False)),
    ({0: part(set(range(MOST)), MOST)}, (), (9, True)),
    ({0: part(set(range(MOST + 1)), MOST + 1)}, (), (5, False)),
]


@pytest.mark.parametrize(("offers", "damaged", "expected"), GATHERED)
def test_nodes_that_have_all_parts_together_lend_them_to_each_other(
    offers: dict[int, RestoreOffer],
    damaged: tuple[tuple[CheckpointVersion, Tier], ...],
    expected: tuple[int, bool],
) -> None:
    """A part that is nowhere, or of another version's world, leaves storage as the origin."""
    choice = origin(offers, damaged, None, MOST)
    assert choice.version is not None
    assert (choice.version.step, choice.gathered) == expected, choice


def test_what_two_worlds_have_saved_under_one_number_is_never_mixed() -> None:
    """Two masters may have given it; where the world is not known, nobody lends."""
    mine, its = part({0, 1}, memory=(9,)), part({2, 3}, memory=(9,))
    assert origin({0: mine, 1: its}, (), None, MOST).version == v(9)
    for name in ("other", ""):
        other = MemoryPart(world_size=4, ranks=frozenset({2, 3}), world=name)
        offers = {0: mine, 1: dataclasses.replace(its, parts={v(9): other})}
        assert sources(v(9), offers, MOST) is None
        chosen = origin(offers, (), None, MOST)
        assert (chosen.version, chosen.gathered) == ((v(5), False) if name else (v(9), False))


def test_a_full_copy_serves_all_who_have_nothing() -> None:
    """Its holders read nothing, the others all of one of them; what nobody needs may be lost."""
    full = MemoryPart(world_size=3, ranks=frozenset({0}), whole=True, world="w")
    holder = RestoreOffer(parts={v(9): full})
    another = RestoreOffer(parts={v(9): dataclasses.replace(full, ranks=frozenset({1}))})
    offers = {0: holder, 1: another, 2: RestoreOffer(), 3: RestoreOffer(), 4: RestoreOffer()}
    choice = origin(offers, (), None, MOST)
    assert (choice.version, choice.gathered, choice.partial) == (v(9), True, True)
    assert sources(v(9), offers, MOST) == {0: {}, 1: {}, 2: {0: (0,)}, 3: {1: (1,)}, 4: {0: (0,)}}
    third = RestoreOffer(parts={v(9): dataclasses.replace(full, ranks=frozenset({2}))})
    assert not origin({**offers, 5: third}, (), None, MOST).partial
    alone = {0: dataclasses.replace(holder, gathers=False), 1: RestoreOffer()}
    assert origin(alone, (), None, MOST).version is None


def test_an_agent_of_an_older_release_is_not_sent_to_others() -> None:
    """It would begin with what it has, which is nothing; where it has all, it may."""
    full = MemoryPart(world_size=2, ranks=frozenset({0}), whole=True, world="w")
    old = RestoreOffer(gathers=False)
    assert sources(v(9), {0: RestoreOffer(parts={v(9): full}), 1: old}, MOST) is None
    assert sources(v(9), {0: part({0, 1}), 1: part({2, 3}), 2: old}, MOST) is None
    holds = dataclasses.replace(old, parts={v(9): full})
    assert sources(v(9), {0: holds, 1: holds}, MOST) == {0: {}, 1: {}}


def test_a_node_reads_what_it_lacks_and_no_more() -> None:
    """A node with all it needs reads nothing. Others read each missing part from one holder."""
    offers = {
        0: part({0, 1}),
        1: part({1, 2, 3}, memory=(9,)),
        2: part({0, 1, 2, 3}),
        3: offer(),
    }
    assert sources(v(9), offers, MOST) == {
        0: {1: (2, 3)},
        1: {},
        2: {},
        3: {0: (0, 1), 1: (2, 3)},
    }
    assert sources(v(8), offers, MOST) is None


VERSIONS = st.builds(v, st.integers(1, 4), st.integers(1, 2))
OFFERS = st.builds(
    holding, memory=st.frozensets(VERSIONS, max_size=3), stored=st.frozensets(VERSIONS, max_size=3)
)


@given(st.dictionaries(st.integers(0, 3), OFFERS, min_size=1), st.sets(VERSIONS))
def test_what_is_chosen_is_to_be_had_by_everybody_and_nothing_newer_is(
    offers: dict[int, RestoreOffer], damaged: set[CheckpointVersion]
) -> None:
    """Whatever the nodes have."""
    bad = {(one, Tier.MEMORY) for one in damaged}
    choice = origin(offers, bad, None, MOST)
    shared = {
        tier: frozenset.intersection(*(one.has(tier) for one in offers.values())) for tier in TIERS
    }
    shared[Tier.MEMORY] -= damaged
    assert choice.version == max(frozenset().union(*shared.values()), default=None)
    if choice.version is not None:
        assert choice.tier is min(tier for tier in TIERS if choice.version in shared[tier])


def test_who_wrote_commits_while_it_is_there() -> None:
    """Else anybody; nobody where nobody is there."""
    assert coordinator({2, 1}, {0, 1, 2}) == 1
    assert coordinator({2, 1}, {0, 2}) == 2
    assert coordinator({2}, {0, 1}) == 0
    assert coordinator({2}, ()) is None
