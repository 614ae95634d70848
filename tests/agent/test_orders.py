"""What an accepted order means for the round that runs here."""

from __future__ import annotations

import pytest

from holdfast_agent.decide import orders
from holdfast_agent.decide.orders import Order


@pytest.mark.parametrize(
    ("own", "new", "asked", "order", "why"),
    [
        pytest.param(0, 1, 2, Order.START, "replaces 0", id="first"),
        pytest.param(4, 5, 2, Order.START, "replaces 4", id="newer"),
        pytest.param(4, 9, 2, Order.START, "replaces 4", id="rounds-were-missed"),
        pytest.param(4, 4, 2, Order.KEEP, "before", id="repeated"),
        pytest.param(4, 3, 2, Order.KEEP, "older", id="older"),
        pytest.param(4, 5, 3, Order.KEEP, "asks for 3", id="another-size"),
    ],
)
def test_an_assignment_starts_only_a_newer_round_of_this_size(
    own: int, new: int, asked: int, order: Order, why: str
) -> None:
    """Repeats and older rounds change nothing, nor does a world of a size that is not here."""
    verdict = orders.on_assignment(own, new, asked, 2)
    assert verdict.order is order
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("own", "master", "alive", "order"),
    [
        pytest.param(5, 5, True, Order.KEEP, id="known"),
        pytest.param(5, 6, True, Order.KILL, id="master-is-ahead"),
        pytest.param(5, 4, True, Order.KILL, id="master-is-behind"),
        pytest.param(5, 0, True, Order.KILL, id="master-knows-none"),
        pytest.param(5, 6, False, Order.KEEP, id="nothing-runs"),
        pytest.param(0, 0, False, Order.KEEP, id="new-agent"),
    ],
)
def test_only_the_round_that_the_master_knows_may_live_on(
    *, own: int, master: int, alive: bool, order: Order
) -> None:
    """After a reconnect workers of any other round are killed."""
    assert orders.on_welcome(own, master, alive=alive).order is order


@pytest.mark.parametrize(
    ("own", "stopped", "alive", "order"),
    [
        pytest.param(5, 5, True, Order.KILL, id="this-round"),
        pytest.param(5, 0, True, Order.KILL, id="whatever-runs"),
        pytest.param(5, 6, True, Order.KEEP, id="another-round"),
        pytest.param(5, 5, False, Order.KEEP, id="nothing-runs"),
    ],
)
def test_a_stop_is_about_one_round(*, own: int, stopped: int, alive: bool, order: Order) -> None:
    """A stop ends the round that it names, or whatever runs where it names none."""
    assert orders.on_stop(own, stopped, alive=alive).order is order
