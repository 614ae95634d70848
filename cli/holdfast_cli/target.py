"""A job on any machine: reaching its master, and its final state; the list of this machine's jobs.

Jobs of this machine are here; those of a Kubernetes cluster are in `cluster.job`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import grpc

from holdfast_cli import final_state, render
from holdfast_cli.errors import CliError, MasterUnreachableError
from holdfast_cli.final_state import FinalState
from holdfast_cli.job_directory import JobHome, JobRecord, is_running, job_home, job_names
from holdfast_wire.channel import Options, channel_credentials, master_channel_options


@dataclasses.dataclass(frozen=True, slots=True)
class MasterChannel:
    """Address and credentials for a gRPC channel to a master."""

    target: str
    credentials: grpc.ChannelCredentials
    options: Options


class JobTarget(Protocol):
    """Job that a command is about."""

    @property
    def name(self) -> str:
        """Name of the job."""

    @property
    def hint(self) -> str:
        """Arguments that name the job in a command."""

    def ending(self) -> FinalState | None:
        """Final state of the job; None if none was written."""

    def is_running(self) -> bool:
        """Return True if a runner or an operator still looks after the job."""

    def reach(self) -> AbstractContextManager[MasterChannel]:
        """Yield the master's endpoint while the context lasts; raises MasterUnreachableError."""

    def why_unreachable(self, cause: str) -> str:
        """Explain why a master does not answer."""

    def close(self) -> None:
        """Close what was opened."""


@dataclasses.dataclass(frozen=True, slots=True)
class LocalPlace:
    """Job of this machine."""

    home: JobHome

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.home.record().name

    @property
    def hint(self) -> str:
        """Arguments that name the job in a command."""
        return self.name

    def ending(self) -> FinalState | None:
        """Final state of the job; None if none was written."""
        return final_state.read(self.home)

    def is_running(self) -> bool:
        """Return True if its runner is alive."""
        return is_running(self.home.record())

    @contextlib.contextmanager
    def reach(self) -> Iterator[MasterChannel]:
        """Yield the master's endpoint; raises MasterUnreachableError."""
        endpoint = self.home.endpoint()
        if endpoint is None:
            raise MasterUnreachableError(self.why_unreachable("it has not started to serve"))
        credentials = channel_credentials(self.home.tls("user"))
        options = master_channel_options(self.home.record().uid)
        yield MasterChannel(endpoint.target, credentials, options)

    def why_unreachable(self, cause: str) -> str:
        """Explain why a master does not answer."""
        if self.is_running():
            return f"the master of {self.name} does not answer: {cause}; see {self.home.logs}"
        return (
            f"job {self.name} is not running any more and left no word of its end; its logs are in "
            f"{self.home.logs}, and `holdfast journal show {self.name}` tells what happened"
        )

    def close(self) -> None:
        """Do nothing: nothing is open."""


def place_of(job: JobHome | JobTarget) -> JobTarget:
    """Return the target for a job, or for the directory of a local one."""
    return LocalPlace(job) if isinstance(job, JobHome) else job


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
