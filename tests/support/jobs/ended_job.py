"""A job of this machine that has ended, as `holdfast` finds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast_cli import final_state
from holdfast_cli.job_directory import JobHome, JobRecord
from holdfast_wire.messages import GetJobResponse, JobPhase, JobStatus


def recorded_home(root: Path, name: str = "gpt") -> JobHome:
    """Make the directory of a job whose runner is gone, without a final state."""
    home = JobHome(root / "jobs" / name)
    home.create()
    home.write_record(
        JobRecord(name=name, uid="u", runner_pid=os.getpid(), runner_started=1, job_file="/x")
    )
    return home


def ended_job(root: Path, **parts: Any) -> JobHome:
    """Make the directory of the job "gpt", which has succeeded; `parts` of its final state."""
    home = recorded_home(root)
    status = JobStatus(name="gpt", phase=JobPhase.SUCCEEDED)
    final_state.write(home, final_state.FinalState(job=GetJobResponse(status=status), **parts))
    return home
