"""Meaning of an accepted order for the round that runs here."""

from __future__ import annotations

import pytest

from holdfast_agent.policies import master_messages
from holdfast_agent.policies.master_messages import RoundOrder


@pytest.mark.parametrize(
    ("own", "new", "asked", "order", "why"),
    [
        pytest.param(0, 1, 2, RoundOrder.START, "replaces 0", id="first"),
        pytest.param(4, 5, 2, RoundOrder.START, "replaces 4", id="newer"),
        pytest.param(4, 9, 2, RoundOrder.START, "replaces 4", id="rounds-were-missed"),
        pytest.param(4, 4, 2, RoundOrder.KEEP, "before", id="repeated"),
        pytest.param(4, 3, 2, RoundOrder.KEEP, "older", id="older"),
        pytest.param(4, 5, 3, RoundOrder.KEEP, "asks for 3", id="another-size"),
    ],
)
def test_an_assignment_starts_only_a_newer_round_of_this_size(
    own: int, new: int, asked: int, order: RoundOrder, why: str
) -> None:
    """Repeats and older rounds change nothing, nor does a world of a size that is not here."""
    verdict = master_messages.on_assignment(own, new, asked, 2)
    assert verdict.order is order
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("own", "master", "alive", "order"),
    [
        pytest.param(5, 5, True, RoundOrder.KEEP, id="known"),
        pytest.param(5, 6, True, RoundOrder.KILL, id="master-is-ahead"),
        pytest.param(5, 4, True, RoundOrder.KILL, id="master-is-behind"),
        pytest.param(5, 0, True, RoundOrder.KILL, id="master-knows-none"),
        pytest.param(5, 6, False, RoundOrder.KEEP, id="nothing-runs"),
        pytest.param(0, 0, False, RoundOrder.KEEP, id="new-agent"),
    ],
)
def test_only_the_round_that_the_master_knows_may_live_on(
    *, own: int, master: int, alive: bool, order: RoundOrder
) -> None:
    """After a reconnect workers of any other round are killed."""
    assert master_messages.on_welcome(own, master, alive=alive).order is order


@pytest.mark.parametrize(
    ("own", "stopped", "alive", "order"),
    [
        pytest.param(5, 5, True, RoundOrder.KILL, id="this-round"),
        pytest.param(5, 0, True, RoundOrder.KILL, id="whatever-runs"),
        pytest.param(5, 6, True, RoundOrder.KEEP, id="another-round"),
        pytest.param(5, 5, False, RoundOrder.KEEP, id="nothing-runs"),
    ],
)
def test_a_stop_is_about_one_round(
    *, own: int, stopped: int, alive: bool, order: RoundOrder
) -> None:
    """A stop ends the round that it names, or whatever runs where it names none."""
    assert master_messages.on_stop(own, stopped, alive=alive).order is order
