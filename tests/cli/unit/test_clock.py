"""The runner's time goes on steadily, whatever is done to the wall clock."""

from __future__ import annotations

import time

import pytest

from holdfast_cli.runner import local_job


def test_a_wall_clock_that_is_set_does_not_move_the_runners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is today's, and a day back or forth is none."""
    before = local_job.now()
    assert abs(before - time.time()) < 3600.0
    real = time.time
    for jump in (-86_400.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        assert 0.0 <= local_job.now() - before < 60.0
