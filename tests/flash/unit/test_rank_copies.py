"""Slow work on a step waits for the ranks that still copy it, and for nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.worker_thread import RankCopies

_LONG = 30.0
"""Seconds of grace that no test waits for."""


def _waiter(copies: RankCopies, version: Version) -> threading.Thread:
    thread = threading.Thread(target=copies.wait, args=(version,), daemon=True)
    thread.start()
    return thread


def _ends(thread: threading.Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()


@pytest.mark.parametrize(
    "end",
    [
        lambda copies: copies.copied(Version(1, 5), 1, [0, 1]),
        RankCopies.give_up,
        lambda copies: copies.copied(Version(1, 6), 1, [0, 1]),
    ],
    ids=["the last rank has copied", "a rank is gone", "a rank skipped this step"],
)
def test_work_waits_until_nobody_copies_the_step_any_more(
    end: Callable[[RankCopies], None],
) -> None:
    """The first of two ranks ends no wait; the second does, and so does a dead or a newer one."""
    copies = RankCopies(_LONG)
    copies.copied(Version(1, 5), 0, [0, 1])
    waiter = _waiter(copies, Version(1, 5))
    assert waiter.is_alive()
    end(copies)
    assert _ends(waiter)


def test_a_rank_that_never_comes_costs_one_grace() -> None:
    """The second piece of work on the same step does not wait again."""
    copies = RankCopies(0.2)
    copies.copied(Version(1, 5), 0, [0, 1])
    begun = time.monotonic()
    copies.wait(Version(1, 5))
    assert time.monotonic() - begun >= 0.2
    patient = RankCopies(_LONG)
    patient.copied(Version(1, 5), 0, [0, 1])
    patient.give_up()  # as after the grace
    assert _ends(_waiter(patient, Version(1, 5)))
