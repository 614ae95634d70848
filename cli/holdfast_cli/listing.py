"""The jobs of this machine: which there are, and whether each one runs or how it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast_cli import ending
from holdfast_cli.failures import CliError
from holdfast_cli.home import JobHome, JobRecord, is_running, job_home, known_jobs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A line of `holdfast status`."""

    name: str
    state: str
    """running, succeeded, failed, ended (it left no word how), or damaged (its record is)."""
    job_file: str = ""
    directory: str
    uid: str = ""
    runner_pid: int = 0


def list_jobs(environ: Mapping[str, str]) -> list[ListedJob]:
    """Return every job that was run here, by name."""
    return [_listed(name, job_home(environ, name)) for name in known_jobs(environ)]


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
    found = ending.read(home)
    return "ended" if found is None else found.status.phase.name.lower()
