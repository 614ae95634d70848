"""Slow work on a step waits for the ranks that still copy it, and for nobody else."""

from __future__ import annotations

import threading
import time

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


def test_work_waits_until_the_last_rank_has_copied() -> None:
    """The first of two ranks opens nothing; the second does."""
    copies = RankCopies(_LONG)
    copies.copied(Version(1, 5), 0, [0, 1])
    waiter = _waiter(copies, Version(1, 5))
    assert waiter.is_alive()
    copies.copied(Version(1, 5), 1, [0, 1])
    assert _ends(waiter)


def test_a_rank_that_goes_ends_the_wait() -> None:
    """A dead rank is not waited for."""
    copies = RankCopies(_LONG)
    copies.copied(Version(1, 5), 0, [0, 1])
    waiter = _waiter(copies, Version(1, 5))
    copies.give_up()
    assert _ends(waiter)


def test_a_newer_step_ends_the_wait_for_an_older_one() -> None:
    """A rank that skipped step 5 saves step 6: nobody copies step 5 any more."""
    copies = RankCopies(_LONG)
    copies.copied(Version(1, 5), 0, [0, 1])
    waiter = _waiter(copies, Version(1, 5))
    copies.copied(Version(1, 6), 1, [0, 1])
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
