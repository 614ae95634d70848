"""Local SGD whose replicas choose how they agree: people read of each choice and its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.local_job import StartJob
from local_sgd import switching_script

pytestmark = [pytest.mark.train, pytest.mark.deadline, pytest.mark.timeout(180)]


def test_each_switch_is_an_event_with_what_was_measured(
    start_job: StartJob, tmp_path: Path
) -> None:
    """A slow link leads to local steps, a fast one back; the status has what runs."""
    fast = tmp_path / "fast"
    job = start_job(script=[switching_script.__file__, str(fast)])
    slow = job.wait_event("SyncSwitched")
    assert "steps from step" in slow.text
    assert "not in each step" in slow.text
    assert "agreement costs" in slow.text
    sync = job.status().sync
    assert sync is not None
    assert sync.made
    assert sync.interval > 1
    assert "steps, chosen at step" in job.cli("status", job.name).stdout
    fast.touch()
    back = job.wait_event("SyncSwitched", text="and would cost at most", after=slow.sequence)
    assert "agreement costs" in back.text
    assert job.finish() == 0, job.evidence()
