"""Reports of the master are kept until something newer replaces them; older masters are dropped."""

from __future__ import annotations

import pytest

from holdfast_operator.plan.view import JobOutcome, KnownMaster, MasterView, Said
from holdfast_operator.spec.job import SpecVersion
from holdfast_wire.messages import (
    ExcludeDecision,
    Fence,
    FinishDecision,
    JobStatus,
    ReleaseDecision,
    ReplaceDecision,
    ScaleDecision,
)


def _after(*said: Said) -> MasterView:
    view = MasterView()
    for at, one in enumerate(said):
        view = view.hear(one, now=10.0 + at, version=SpecVersion(at))
    return view


SAID: list[Said] = [
    JobStatus(round=1),
    ReplaceDecision(node_rank=1),
    ReleaseDecision(node_ranks=(1,)),
    ScaleDecision(decision_id=1),
    ExcludeDecision(node="n"),
    FinishDecision(),
]


@pytest.mark.parametrize("said", SAID, ids=[type(one).__name__ for one in SAID])
def test_whatever_is_said_shows_that_the_master_is_there(said: Said) -> None:
    """A message is as good as a status; when the stream ends, what was said still holds."""
    view = _after(said)
    assert view.connected
    gone = view.disconnected()
    assert not gone.connected
    assert gone != MasterView()


def test_the_newest_decision_of_a_rank_holds() -> None:
    """Ranks are apart; of one rank only the last wish matters."""
    first, second, other = (
        ReplaceDecision(decision_id=at, node_rank=rank, pod_uid=str(at))
        for at, rank in enumerate((1, 1, 2))
    )
    assert _after(first, second, other).replace == {1: second, 2: other}


def test_releases_add_up_and_carry_the_generation_that_they_were_about() -> None:
    """A release is worth nothing for a later spec."""
    view = _after(ReleaseDecision(node_ranks=(3, 4)), ReleaseDecision(node_ranks=(4,)))
    assert view.released == {3: SpecVersion(0), 4: SpecVersion(1)}


def test_excluded_nodes_are_kept_in_order_without_repeats() -> None:
    """By decision or by status; a node that is excluded again becomes the newest."""
    view = _after(
        ExcludeDecision(node="a"),
        ExcludeDecision(node="b"),
        ExcludeDecision(node="a"),
        JobStatus(excluded_nodes=("c", "b", "c")),
    )
    assert view.excluded == ("b", "a", "c")
    assert view.hear(
        ExcludeDecision(node="a", lifted=True), now=1.0, version=SpecVersion(1)
    ).excluded == (
        "b",
        "c",
    )


def test_an_outcome_keeps_the_time_at_which_it_was_first_heard() -> None:
    """A master that repeats itself does not put off the end."""
    said = FinishDecision(succeeded=True, reason="Succeeded", text="t")
    assert _after(said, said).outcome == JobOutcome(True, "Succeeded", "t", 10.0)


def test_an_answered_wish_is_gone() -> None:
    """Another one stays."""
    view = _after(ScaleDecision(decision_id=2, replicas=4))
    assert view.answered(1) == view
    assert view.answered(2).scale is None
    assert view.answered(2).answered(2).scale is None


HEARD = KnownMaster(epoch=5, incarnation="a")
STARTED = KnownMaster(epoch=5)


@pytest.mark.parametrize(
    ("known", "fence", "obeyed"),
    [
        (KnownMaster(), None, True),
        (KnownMaster(), Fence(epoch=1, incarnation="a"), True),
        (HEARD, None, True),
        (HEARD, Fence(), True),
        (HEARD, Fence(epoch=5, incarnation="a"), True),
        (HEARD, Fence(epoch=5, incarnation="a", round=9), True),
        (HEARD, Fence(epoch=5, incarnation="b"), False),
        (HEARD, Fence(epoch=5), False),
        (HEARD, Fence(epoch=6, incarnation="b"), True),
        (HEARD, Fence(epoch=4, incarnation="a"), False),
        (STARTED, Fence(epoch=5, incarnation="b"), True),
        (STARTED, Fence(epoch=4, incarnation="a"), False),
        (HEARD.ended(), Fence(epoch=5, incarnation="b"), True),
        (HEARD.ended(), Fence(epoch=4, incarnation="a"), False),
        (HEARD.started(6), Fence(epoch=5, incarnation="a"), False),
        (HEARD.started(5), Fence(epoch=5, incarnation="b"), False),
        (HEARD.started(4), Fence(epoch=5, incarnation="a"), True),
    ],
)
def test_older_masters_and_twins_are_refused(
    known: KnownMaster, fence: Fence | None, *, obeyed: bool
) -> None:
    """No fence is an older release's; a restart that was seen frees the epoch's name."""
    assert (known.refusal(fence) == "") is obeyed


def test_what_is_heard_is_known_from_then_on() -> None:
    """A response without a fence teaches nothing."""
    assert KnownMaster().heard(Fence(epoch=5, incarnation="a", round=3)) == HEARD
    assert HEARD.heard(None) == HEARD
    assert HEARD.heard(Fence()) == HEARD
