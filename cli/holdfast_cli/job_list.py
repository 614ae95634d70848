"""List of this machine's jobs, each with its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_cli import final_state, render
from holdfast_cli.errors import CliError
from holdfast_cli.job_directory import JobHome, JobRecord, is_running, job_home, job_names


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A line of `holdfast status`."""

    name: str
    state: str
    """running, succeeded, failed, stopped, ended (without a final state) or damaged (its
    record)."""
    job_file: str = ""
    directory: str
    uid: str = ""
    runner_pid: int = 0


def list_jobs(environ: Mapping[str, str]) -> list[ListedJob]:
    """Return every job that was run here, by name."""
    return [_listed(name, job_home(environ, name)) for name in job_names(environ)]


def _listed(name: str, home: JobHome) -> ListedJob:
    try:
        record = home.record()
    except CliError:
        return ListedJob(name=name, state="damaged", directory=str(home.path))
    return ListedJob(
        name=name,
        state=_state(home, record),
        job_file=record.job_file,
        directory=str(home.path),
        uid=record.uid,
        runner_pid=record.runner_pid,
    )


def _state(home: JobHome, record: JobRecord) -> str:
    if is_running(record):
        return "running"
    found = final_state.read(home)
    return "ended" if found is None else render.phase_name(found.status).lower()
