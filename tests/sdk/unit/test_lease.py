"""The lease: workers do not outlive an agent that has stopped saying that it lives."""

from __future__ import annotations

import signal
import time

import pytest

from agents.page_worker import page_of, python
from holdfast.page import Page

SECOND = 1_000_000_000

STEPPING = """
    import sys
    import holdfast
    job = holdfast.init()
    print("ready", flush=True)
    n = 0
    for line in sys.stdin:
        n += 1
        job.step(n)
        print("stepped", flush=True)
"""


@pytest.mark.parametrize(
    ("age_s", "survives"),
    [
        pytest.param(None, True, id="no lease yet"),
        pytest.param(0.0, True, id="fresh"),
        pytest.param(3.0, True, id="3 s old"),
        pytest.param(4.1, False, id="4.1 s old"),
        pytest.param(30.0, False, id="30 s old"),
    ],
)
def test_a_step_under_a_stale_lease_is_the_last(age_s: float | None, *, survives: bool) -> None:
    """A worker that wakes up beside a dead lease kills itself before it does anything else."""
    with page_of(1) as page, python(page, 0, STEPPING) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"  # its start may take longer than a lease
        if age_s is not None:
            page.begin_lease(time.monotonic_ns() - int(age_s * SECOND))
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == ("stepped\n" if survives else "")
        if not survives:
            assert process.wait(10) == -signal.SIGKILL
            assert page.read(0).step == 0


def test_a_lease_that_ran_out_cannot_be_renewed(page: Page) -> None:
    """An agent that was frozen must not give its old workers new life."""
    page.begin_lease(1 * SECOND)
    assert page.renew_lease(2 * SECOND)
    assert page.renew_lease(6 * SECOND)
    assert not page.renew_lease(11 * SECOND)
    assert page.lease_is_stale(11 * SECOND)
    page.begin_lease(11 * SECOND)
    assert not page.lease_is_stale(12 * SECOND)
    assert page.renew_lease(12 * SECOND)
