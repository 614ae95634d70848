"""Choice of the master that is obeyed, of those that one job has had."""

from __future__ import annotations

import pytest

from holdfast_operator.plan.master_fence import KnownMaster
from holdfast_wire.messages import Fence

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
