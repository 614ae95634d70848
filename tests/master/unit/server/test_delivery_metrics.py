"""The log line that says how long a world took to deliver."""

from __future__ import annotations

import logging

import pytest

from holdfast_master.server.sessions import LOGGED_FROM, Burst


def test_a_large_burst_is_logged_when_its_last_message_is_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, with how many and how long; a small one is not."""
    now = 10.0
    burst = Burst(lambda: now)
    with caplog.at_level(logging.INFO, "holdfast_master.server.sessions"):
        burst.more(LOGGED_FROM - 1)
        burst.less(LOGGED_FROM - 1)
        assert not caplog.records
        for _ in range(LOGGED_FROM):
            burst.more(1)
        now = 12.5
        burst.less(LOGGED_FROM - 1)
        assert not caplog.records
        burst.less(1)
    (record,) = caplog.records
    assert (vars(record)["messages"], vars(record)["seconds"]) == (LOGGED_FROM, 2.5)
