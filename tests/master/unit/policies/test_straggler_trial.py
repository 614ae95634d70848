"""What the exclusion of a slow node has shown."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_master.policies.straggler.trial import WINDOWS, TrialView, accuse, outcome
from holdfast_master.policies.straggler.verdict import StragglerVerdict, Subject
from holdfast_wire.messages import StragglerOutcome, StragglerTrial

FAST = TrialView(elsewhere=True, run=-WINDOWS, accused=False)
SLOW = TrialView(elsewhere=True, run=WINDOWS, accused=True)
UNKNOWN, NODE, RANK = StragglerOutcome.UNSPECIFIED, StragglerOutcome.NODE, StragglerOutcome.RANK


def _accusation(*ranks: int) -> StragglerVerdict:
    return StragglerVerdict(
        subject=Subject.NODE,
        node="n1",
        ranks=ranks,
        since_step=100,
        percent=50.0,
        node_seconds_per_hour=4800.0,
        considered=(),
        reason="n1 is slow",
    )


@pytest.mark.parametrize(
    ("ranks", "later"),
    [
        pytest.param((4, 5), (NODE, NODE), id="a-node-of-two-ranks"),
        pytest.param((4,), (NODE, RANK), id="one-rank-whose-work-begins-at-a-later-step"),
    ],
)
def test_a_second_slow_node_under_several_ranks_does_not_acquit_the_first(
    ranks: tuple[int, ...], later: tuple[StragglerOutcome, StragglerOutcome]
) -> None:
    """The first one's successor was fast: what all of its ranks meet later is another fault."""
    trial = StragglerTrial(round=1, agent_id="a", ranks=ranks)
    seen = []
    for view in (FAST, SLOW):
        trial = dataclasses.replace(trial, outcome=outcome(trial, view))
        seen.append(trial.outcome)
    assert tuple(seen) == later


def test_several_ranks_that_are_slow_at_once_on_their_next_node_were_no_node_s() -> None:
    """Nothing has spoken for the node before; on the same node nothing is known."""
    trial = StragglerTrial(round=1, agent_id="a", ranks=(4, 5))
    assert outcome(trial, SLOW) is RANK
    assert outcome(trial, dataclasses.replace(SLOW, elsewhere=False)) is UNKNOWN


def test_one_of_several_ranks_that_is_accused_says_nothing_of_their_first_node() -> None:
    """One or more verdicts must accuse all of them."""
    assert not accuse([_accusation(4)], (4, 5))
    assert not accuse([], (4, 5))
    assert accuse([_accusation(4, 5, 6)], (4, 5))
    assert accuse([_accusation(4), _accusation(5)], (4, 5))
