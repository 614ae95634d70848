"""Which version a world starts from, and who commits a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.decide.checkpoints import Offer, coordinator, origin
from holdfast_wire.messages import CheckpointVersion


def v(step: int, lineage: int = 1) -> CheckpointVersion:
    """A version."""
    return CheckpointVersion(lineage=lineage, step=step)


def offer(memory: tuple[int, ...] = (), stored: tuple[int, ...] = ()) -> Offer:
    """What a node could start from, by steps of lineage 1."""
    return Offer(memory=frozenset(map(v, memory)), stored=frozenset(map(v, stored)))


TABLE = [
    # what each node has; what is damaged; what was announced; then step, tier, warning
    ({0: offer((8, 9)), 1: offer((8,))}, (), None, (8, True, False)),
    ({0: offer((9,), (5,)), 1: offer((), (5,))}, (), 5, (5, False, False)),
    ({0: offer((5,), (5,)), 1: offer((5,), (5,))}, (), 5, (5, True, False)),
    ({0: offer((9,), (5,)), 1: offer((9,), (5,))}, ((v(9), True),), 5, (5, False, False)),
    ({0: offer((), (5, 4)), 1: offer((), (5, 4))}, ((v(5), False),), 5, (4, False, True)),
    ({0: offer((9,)), 1: offer((8,))}, (), None, (None, False, False)),
    ({0: offer(), 1: offer()}, (), 5, (None, False, True)),
    ({0: offer((3,), (7,)), 1: offer((3,), (7,))}, (), 7, (7, False, False)),
]


@pytest.mark.parametrize(("offers", "damaged", "announced", "expected"), TABLE)
def test_the_newest_that_every_node_has_in_one_tier(
    offers: dict[int, Offer],
    damaged: tuple[tuple[CheckpointVersion, bool], ...],
    announced: int | None,
    expected: tuple[int | None, bool, bool],
) -> None:
    """Memory where it is as new; a damaged copy leads to another tier, then to an older step."""
    choice = origin(offers, damaged, None if announced is None else v(announced))
    step = None if choice.version is None else choice.version.step
    assert (step, choice.memory, choice.older) == expected
    assert choice.reason


def test_a_later_world_counts_more_than_a_later_step() -> None:
    """Step 12 of a world that is no more is older than step 11 of the one after it."""
    both = Offer(memory=frozenset([v(12, 1)]), stored=frozenset([v(11, 2)]))
    choice = origin({0: both}, (), None)
    assert (choice.version, choice.memory) == (v(11, 2), False)


VERSIONS = st.builds(v, st.integers(1, 4), st.integers(1, 2))
OFFERS = st.builds(
    Offer, memory=st.frozensets(VERSIONS, max_size=3), stored=st.frozensets(VERSIONS, max_size=3)
)


@given(st.dictionaries(st.integers(0, 3), OFFERS, min_size=1), st.sets(VERSIONS))
def test_what_is_chosen_is_to_be_had_by_everybody_and_nothing_newer_is(
    offers: dict[int, Offer], damaged: set[CheckpointVersion]
) -> None:
    """Whatever the nodes have."""
    bad = {(one, True) for one in damaged}
    choice = origin(offers, bad, None)
    tiers = [
        [one.memory - damaged for one in offers.values()],
        [one.stored for one in offers.values()],
    ]
    shared = [frozenset.intersection(*tier) for tier in tiers]
    assert choice.version == max(shared[0] | shared[1], default=None)
    if choice.version is not None:
        assert choice.version in shared[0 if choice.memory else 1]


def test_who_wrote_commits_while_it_is_there() -> None:
    """Else anybody; nobody where nobody is there."""
    assert coordinator({2, 1}, {0, 1, 2}) == 1
    assert coordinator({2, 1}, {0, 2}) == 2
    assert coordinator({2}, {0, 1}) == 0
    assert coordinator({2}, ()) is None
