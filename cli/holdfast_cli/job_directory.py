"""Directories of local jobs, and the permissions of their files.

Paths and small records only; nothing here starts a process or opens a connection.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from holdfast_cli.errors import JobNotFoundError

ENV_HOME = "HOLDFAST_HOME"
"""Environment variable that overrides the directory of local jobs."""


def state_root(environ: Mapping[str, str]) -> Path:
    """Return the directory of all local jobs: $HOLDFAST_HOME, else below the XDG state home."""
    own = environ.get(ENV_HOME)
    if own:
        return Path(own)
    state = environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path(environ.get("HOME", "/root")) / ".local" / "state"
    return base / "holdfast"


@dataclasses.dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of a local job, kept beside its master."""

    name: str
    uid: str
    runner_pid: int
    runner_started: int
    """Start time of that process in clock ticks since boot: tells a reused pid apart."""
    job_file: str


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Endpoint of the master, written by the master itself."""

    host: str
    port: int
    pid: int
    epoch: int

    @property
    def target(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True, slots=True)
class JobHome:
    """Directory of one local job; 0700."""

    path: Path

    @property
    def record_file(self) -> Path:
        """`job.json`: the JobRecord."""
        return self.path / "job.json"

    @property
    def endpoint_file(self) -> Path:
        """`endpoint.json`: written by the master once it serves."""
        return self.path / "endpoint.json"

    @property
    def journal(self) -> Path:
        """The master's journal directory."""
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        """Output of the master, the agents and their ranks."""
        return self.path / "logs"

    def tls(self, who: str) -> Path:
        """Certificates of `who`: master, operator, user, or a pod's name."""
        return self.path / "tls" / who

    def create(self) -> None:
        """Make the directory and its fixed content."""
        for directory in (self.path, self.logs, self.journal):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)

    def write_record(self, record: JobRecord) -> None:
        """Store the record, atomically."""
        write_json(self.record_file, dataclasses.asdict(record))

    def record(self) -> JobRecord:
        """Return the stored record.

        Raises:
            JobNotFoundError: There is no record.
        """
        try:
            return JobRecord(**json.loads(self.record_file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise JobNotFoundError(f"no job record in {self.path} ({error})") from error

    def endpoint(self) -> Endpoint | None:
        """Return the master's endpoint; None while there is no such file."""
        try:
            data = json.loads(self.endpoint_file.read_text())
        except (OSError, ValueError):
            return None
        return Endpoint(data["host"], data["port"], data["pid"], data["epoch"])


def job_home(environ: Mapping[str, str], name: str) -> JobHome:
    """Return the home of the job called `name`, which need not exist."""
    return JobHome(state_root(environ) / "jobs" / name)


def find_job(environ: Mapping[str, str], name: str) -> JobHome:
    """Return the home of the existing job called `name`.

    Raises:
        JobNotFoundError: There is no such job; the text names the jobs that exist.
    """
    home = job_home(environ, name)
    if home.record_file.exists():
        return home
    known = job_names(environ)
    hint = f"known jobs: {', '.join(known)}" if known else "no job was run here yet"
    raise JobNotFoundError(f"no job called {name!r} in {state_root(environ)}; {hint}")


def job_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all jobs that have a record, sorted."""
    return sorted(path.parent.name for path in state_root(environ).glob("jobs/*/job.json"))


def process_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def process_started(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if it does not run."""
    fields = process_fields(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def is_running(record: JobRecord) -> bool:
    """Return True if the job's runner is alive."""
    return process_started(record.runner_pid) == record.runner_started


def write_json(path: Path, data: object) -> None:
    """Write `data` to `path`, 0600, by a rename: readers see the old or the new text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file, indent=2)
    temporary.replace(path)
