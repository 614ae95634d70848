"""Messages of a master on which an agent acts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_agent.policies import master_messages
from holdfast_agent.policies.master_messages import Accepted, FenceVerdict
from holdfast_wire.messages import Fence

KNOWN = Accepted(epoch=3, incarnation="a", group=0, round=7)


def _fence(epoch: int = 3, incarnation: str = "a", round_number: int = 7) -> Fence:
    return Fence(epoch=epoch, incarnation=incarnation, round=round_number)


@pytest.mark.parametrize(
    ("got", "about_round", "verdict"),
    [
        pytest.param(None, True, FenceVerdict.NO_FENCE, id="absent"),
        pytest.param(Fence(), True, FenceVerdict.NO_FENCE, id="empty"),
        pytest.param(_fence(epoch=2), False, FenceVerdict.OLDER_EPOCH, id="older-epoch"),
        pytest.param(_fence(epoch=2, round_number=9), True, FenceVerdict.OLDER_EPOCH, id="zombie"),
        pytest.param(_fence(incarnation="b"), False, FenceVerdict.OTHER_INCARNATION, id="twin"),
        pytest.param(_fence(epoch=4, incarnation="b"), False, FenceVerdict.ACCEPT, id="successor"),
        pytest.param(_fence(round_number=6), True, FenceVerdict.OLDER_ROUND, id="older-round"),
        pytest.param(_fence(round_number=6), False, FenceVerdict.ACCEPT, id="not-about-a-round"),
        pytest.param(_fence(), True, FenceVerdict.ACCEPT, id="same-round"),
        pytest.param(_fence(round_number=8), True, FenceVerdict.ACCEPT, id="newer-round"),
    ],
)
def test_a_message_is_judged_by_its_fence(
    *, got: Fence | None, about_round: bool, verdict: FenceVerdict
) -> None:
    """Older masters, twins of the same epoch and older rounds are dropped, each by its name."""
    assert master_messages.judge_fence(KNOWN, got, about_round=about_round) is verdict


def test_a_first_master_is_accepted() -> None:
    """An agent that knows nothing accepts any master."""
    assert (
        master_messages.judge_fence(Accepted(), _fence(), about_round=False) is FenceVerdict.ACCEPT
    )


def test_only_an_assignment_moves_the_round() -> None:
    """A Welcome with a newer round in its fence does not make the agent believe it runs there."""
    later = _fence(epoch=4, incarnation="b", round_number=9)
    assert master_messages.accept_fence(KNOWN, later, about_round=False) == Accepted(
        epoch=4, incarnation="b", round=7
    )
    assert master_messages.accept_fence(KNOWN, later, about_round=True).round == 9


def test_a_report_carries_the_round_that_it_is_about() -> None:
    """Evidence about an older round is labelled with that round."""
    assert KNOWN.fence() == _fence()
    assert KNOWN.fence(6) == _fence(round_number=6)


fences = st.builds(
    Fence,
    epoch=st.integers(1, 4),
    incarnation=st.sampled_from("ab"),
    round=st.integers(0, 5),
)


@given(st.lists(st.tuples(fences, st.booleans()), max_size=20))
def test_epoch_and_round_never_go_back(stream: list[tuple[Fence, bool]]) -> None:
    """Whatever arrives in whatever order, what is accepted only grows."""
    known = Accepted()
    for got, about_round in stream:
        if (
            master_messages.judge_fence(known, got, about_round=about_round)
            is not FenceVerdict.ACCEPT
        ):
            continue
        after = master_messages.accept_fence(known, got, about_round=about_round)
        assert (after.epoch, after.round) >= (known.epoch, known.round)
        known = after
