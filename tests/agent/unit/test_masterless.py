"""Workers of an agent that has no master."""

from __future__ import annotations

import pytest

from holdfast_agent.policies import masterless
from holdfast_wire.messages import Fence, GetRoundResponse, SetBarrier


def _answer(epoch: int, round_number: int) -> GetRoundResponse:
    return GetRoundResponse(fence=Fence(epoch=epoch, incarnation="x", round=round_number))


@pytest.mark.parametrize(
    ("silent", "answers", "kill", "why"),
    [
        pytest.param(1.0, [], False, "no peer", id="no-answers"),
        pytest.param(1.0, [_answer(2, 5)], False, "no peer", id="same-round"),
        pytest.param(1.0, [_answer(2, 4)], False, "no peer", id="older-round"),
        pytest.param(1.0, [_answer(2, 6)], True, "round 6", id="newer-round"),
        pytest.param(1.0, [_answer(3, 6)], True, "round 6", id="newer-master"),
        pytest.param(1.0, [_answer(1, 6)], False, "no peer", id="an-older-master's-round"),
        pytest.param(1.0, [_answer(2, 5), _answer(2, 7)], True, "round 7", id="one-of-two"),
        pytest.param(1.0, [GetRoundResponse()], False, "no peer", id="no-fence"),
        pytest.param(600.0, [], True, "limit", id="limit"),
        pytest.param(599.9, [_answer(2, 5)], False, "no peer", id="just-below"),
    ],
)
def test_workers_without_a_master_train_on_until_a_peer_or_the_limit_says_no(
    *, silent: float, answers: list[GetRoundResponse], kill: bool, why: str
) -> None:
    """Only a newer round among the peers, or the declared limit, kills the workers."""
    verdict = masterless.judge(
        silent_seconds=silent, limit_seconds=600.0, epoch=2, own_round=5, answers=answers
    )
    assert verdict.kill is kill
    assert why in verdict.reason
    assert verdict.barrier is None


def test_a_stop_that_reached_a_peer_is_meant_for_all() -> None:
    """The newest barrier of this round counts; those of other rounds and older masters do not."""

    def said(epoch: int, round_number: int, barrier_id: int) -> GetRoundResponse:
        fence = Fence(epoch=epoch, incarnation="x", round=round_number)
        return GetRoundResponse(
            fence=fence, barrier=SetBarrier(barrier_id=barrier_id, step=10 * barrier_id)
        )

    answers = [said(2, 5, 3), said(2, 5, 4), said(2, 4, 9), said(1, 5, 8), _answer(2, 5)]
    verdict = masterless.judge(
        silent_seconds=0.0, limit_seconds=600.0, epoch=2, own_round=5, answers=answers
    )
    assert not verdict.kill
    assert verdict.barrier == SetBarrier(barrier_id=4, step=40)
